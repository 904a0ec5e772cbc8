// Ranks: 2 as threads, each with a simulated device. How often the host waits for the device in an optimizer step.
//
// The limits are the waits of c10d::Reducer and of Hugging Face Accelerate in the same loop, or fewer. A wait in a step
// ends the host's lead over the device.
#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <vector>

#include "device/training_loops.h"
#include "support/simulated_device/ranks.h"

namespace tutti::waits_test {
namespace {

using test::Extra;
using test::Loop;
namespace simulated = test::simulated;

constexpr int ranks = 2;
constexpr int first_measured_step = 3;
constexpr int steps = 8;

/// The counts of all ranks in the steps from first_measured_step on.
simulated::Counts counts_of(Loop loop, Extra extra) {
  simulated::Counts counts;
  test::run_simulated_ranks({.size = ranks}, [&](const Communicator& communicator, at::Device device) {
    const auto on_step = [&](int step) {
      if (step != first_measured_step && step != steps) return;
      communicator.barrier().wait();
      if (communicator.rank() == 0) {
        if (step == steps) counts = simulated::counts();
        simulated::reset_counts();
      }
      communicator.barrier().wait();
    };
    test::train(communicator, device, {.loop = loop, .extra = extra, .steps = steps, .on_step = on_step});
  });
  return counts;
}

double in_a_step(std::int64_t count) {
  return static_cast<double>(count) / ranks / (steps - first_measured_step);
}

std::string reasons(const simulated::Counts& counts) {
  std::string text = "waits of a rank in a step:";
  for (const auto& [reason, number] : counts.waits) text += " " + reason + " " + std::to_string(in_a_step(number));
  return text;
}

struct Row {
  Loop loop;
  Extra extra;
  double waits;  ///< of a rank in an optimizer step
};

std::ostream& operator<<(std::ostream& out, const Row& row) {
  return out << test::name_of(row.loop) << ", " << test::name_of(row.extra);
}

std::vector<Row> table() {
  std::vector<Row> rows;
  for (const Loop loop : test::all_loops()) rows.push_back({loop, Extra::none, 0});
  for (const Extra extra :
       {Extra::clip_norm, Extra::clip_value, Extra::bf16, Extra::batch_norm_broadcast, Extra::batch_norm_mean,
        Extra::batch_norm_local, Extra::sync_batch_norm, Extra::many_buckets, Extra::metrics}) {
    rows.push_back({Loop::accumulate, extra, 0});
  }
  rows.push_back({Loop::accumulate, Extra::clip_norm_and_read, 1});
  rows.push_back({Loop::accumulate, Extra::fp16, 1});
  return rows;
}

class Waits : public testing::TestWithParam<Row> {};

TEST_P(Waits, AreAtMostThoseOfC10dAndAccelerate) {
  const simulated::Counts counts = counts_of(GetParam().loop, GetParam().extra);
  EXPECT_LE(in_a_step(counts.all_waits()), GetParam().waits) << reasons(counts);
  EXPECT_GT(counts.kernels, 0);
}

INSTANTIATE_TEST_SUITE_P(Table, Waits, testing::ValuesIn(table()), [](const testing::TestParamInfo<Row>& row) {
  return test::name_of(row.param.loop) + "_" + test::name_of(row.param.extra);
});

TEST(Kernels, AreAtMostThoseOfC10d) {
  // c10d::Reducer with LibTorch's AdamW, in the loop Loop::accumulate.
  constexpr double kernels_of_c10d = 147;
  EXPECT_LE(in_a_step(counts_of(Loop::accumulate, Extra::none).kernels), kernels_of_c10d);
}

}  // namespace
}  // namespace tutti::waits_test
