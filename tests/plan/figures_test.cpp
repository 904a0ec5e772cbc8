#include "plan/figures.h"

#include <gtest/gtest.h>

#include <sstream>

#include "tutti/core/error.h"

namespace tutti::plan::figures_test {
namespace {

TEST(PlanFigures, AreReadAsTheyWereWritten) {
  const Machine machine{.cores = 0.1,
                        .node_barrier_us = 1.0 / 3,
                        .sum_gb_per_s = 7,
                        .message_us = 1e-9,
                        .message_cpu_us = 12,
                        .message_gb_per_s = 1.5};
  std::stringstream text;
  write(text, machine);
  const Machine same = read_machine(text);
  EXPECT_EQ(same.cores, machine.cores);
  EXPECT_EQ(same.node_barrier_us, machine.node_barrier_us);
  EXPECT_EQ(same.sum_gb_per_s, machine.sum_gb_per_s);
  EXPECT_EQ(same.message_us, machine.message_us);
  EXPECT_EQ(same.message_cpu_us, machine.message_cpu_us);
  EXPECT_EQ(same.message_gb_per_s, machine.message_gb_per_s);
}

TEST(PlanFigures, KeepBuckets) {
  std::stringstream text;
  write(text, Work{.forward_ms = 1, .backward_ms = 2, .optimizer_ms = 3, .micro_batches = 4, .buckets = {{5, 0.6}}});
  const Work same = read_work(text);
  EXPECT_EQ(same.optimizer_ms, 3);
  EXPECT_EQ(same.micro_batches, 4);
  ASSERT_EQ(same.buckets.size(), 1U);
  EXPECT_EQ(same.buckets[0].bytes, 5);
  EXPECT_EQ(same.buckets[0].ready, 0.6);
}

TEST(PlanFigures, TruncatedFiguresAreRefused) {
  for (const char* text : {"", "1 2 3", "no measurements"}) {
    std::istringstream in(text);
    EXPECT_THROW(read_machine(in), Error) << text;
  }
  for (const char* text : {"", "1 2 3 4", "1 2 3 4 2\n5 0.5\n"}) {
    std::istringstream in(text);
    EXPECT_THROW(read_work(in), Error) << text;
  }
}

}  // namespace
}  // namespace tutti::plan::figures_test
