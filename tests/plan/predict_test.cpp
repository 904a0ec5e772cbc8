#include "plan/predict.h"

#include <gtest/gtest.h>

#include <random>

#include "plan/units.h"
#include "tutti/core/error.h"

namespace tutti::plan::predict_test {
namespace {

constexpr double payload = 1448.0 / 1538.0;
constexpr double free_gb_per_s = 1e12;

/// A machine on which only computing takes time.
constexpr Machine fast_machine(double cores) {
  return {.cores = cores, .sum_gb_per_s = free_gb_per_s, .message_gb_per_s = free_gb_per_s};
}

/// A link that sends 1 MB of gradients in a millisecond.
const Link megabyte_in_a_ms{.name = "lab", .gbit = 8 / payload};

Work work_of(std::vector<Bucket> buckets) {
  return {.forward_ms = 10, .backward_ms = 20, .optimizer_ms = 5, .micro_batches = 2, .buckets = std::move(buckets)};
}

TEST(Predict, OneRankExchangesNothing) {
  const Step step =
      predict(fast_machine(1), megabyte_in_a_ms, work_of({{.bytes = 1e6, .ready = 0.5}}), {}, Exchange::in_every_pass);
  EXPECT_DOUBLE_EQ(step.computing_ms, 60);
  EXPECT_DOUBLE_EQ(step.optimizer_ms, 5);
  EXPECT_DOUBLE_EQ(step.total_ms(), 65);
  EXPECT_DOUBLE_EQ(step.efficiency(), 1);
}

TEST(Predict, RanksThatShareCoresComputeInTurns) {
  const auto total = [](int ranks) {
    return predict(fast_machine(2), megabyte_in_a_ms, work_of({{.bytes = 1e6}}), {.ranks_per_node = ranks},
                   Exchange::once_a_step)
        .total_ms();
  };
  EXPECT_NEAR(total(1), 65, 1e-3);
  EXPECT_NEAR(total(2), 65, 1e-3);
  EXPECT_NEAR(total(4), 130, 1e-3);
  EXPECT_NEAR(total(8), 260, 1e-3);
}

TEST(Predict, LateGradientsTakeAllTheTimeOfTheLink) {
  for (const int nodes : {2, 4, 8}) {
    const Step step = predict(fast_machine(3), megabyte_in_a_ms, work_of({{.bytes = 8e6}, {.bytes = 16e6}}),
                              {.nodes = nodes}, Exchange::once_a_step);
    EXPECT_NEAR(step.unhidden_ms, 24 * 2 * (1 - 1.0 / nodes), 1e-3) << nodes;
    EXPECT_NEAR(step.hidden_ms, 0, 1e-3) << nodes;
    EXPECT_NEAR(step.total_ms(), 65 + step.unhidden_ms, 1e-3) << nodes;
  }
}

TEST(Predict, EarlyGradientsAreSentDuringTheBackwardPass) {
  const Work work = work_of({{.bytes = 8e6, .ready = 0.1}});
  const Step step = predict(fast_machine(3), megabyte_in_a_ms, work, {.nodes = 2}, Exchange::once_a_step);
  EXPECT_NEAR(step.hidden_ms, 8, 1e-3);
  EXPECT_NEAR(step.unhidden_ms, 0, 1e-3);
  const Step half = predict(fast_machine(3), megabyte_in_a_ms, work_of({{.bytes = 8e6, .ready = 0.8}}), {.nodes = 2},
                            Exchange::once_a_step);
  EXPECT_NEAR(half.hidden_ms, 4, 1e-3);
  EXPECT_NEAR(half.unhidden_ms, 4, 1e-3);
}

TEST(Predict, HeadersInSharedMemoryTakeOneBarrierForAnyNumberOfRanks) {
  Machine machine = fast_machine(100);
  machine.node_barrier_us = 1000;
  const auto headers_ms_of = [&](int ranks) {
    return predict(machine, megabyte_in_a_ms, work_of({{.bytes = 8e6}}), {.ranks_per_node = ranks},
                   Exchange::once_a_step)
        .headers_ms;
  };
  EXPECT_GT(headers_ms_of(8), 0);
  EXPECT_NEAR(headers_ms_of(9), headers_ms_of(8), 1e-3);
}

TEST(Predict, EveryPassPaysForItsExchange) {
  const Work work = work_of({{.bytes = 8e6}});
  const Step once = predict(fast_machine(3), megabyte_in_a_ms, work, {.nodes = 2}, Exchange::once_a_step);
  const Step every = predict(fast_machine(3), megabyte_in_a_ms, work, {.nodes = 2}, Exchange::in_every_pass);
  EXPECT_NEAR(every.unhidden_ms, 2 * once.unhidden_ms, 1e-9);
  EXPECT_EQ(every.computing_ms, once.computing_ms);
}

TEST(Predict, RanksOfANodeShareItsLinkAndItsSlices) {
  const Work work = work_of({{.bytes = 8e6}});
  const auto unhidden = [&](int ranks_per_node) {
    return predict(fast_machine(64), megabyte_in_a_ms, work, {.nodes = 2, .ranks_per_node = ranks_per_node},
                   Exchange::once_a_step)
        .unhidden_ms;
  };
  EXPECT_NEAR(unhidden(4), unhidden(1), 1e-3);
  // Three ranks per node are summed among all six ranks, not node by node.
  EXPECT_NEAR(unhidden(3), 8 * 2 * 0.5 * 3, 1e-3);
}

TEST(Predict, LatencyCountsInBothDirectionsAndAtMostTwiceForHeaders) {
  Link far = megabyte_in_a_ms;
  far.latency_us = 1000;
  const Step step = predict(fast_machine(3), far, work_of({{.bytes = 1e3}}), {.nodes = 2}, Exchange::once_a_step);
  EXPECT_NEAR(step.unhidden_ms, 2, 1e-2);
  EXPECT_GE(step.headers_ms, 0);
  EXPECT_LE(step.headers_ms, 2.01);
}

TEST(Predict, HalvingAddsItsContributionsWhileNothingIsSent) {
  const Step step =
      predict(fast_machine(64), megabyte_in_a_ms, work_of({{.bytes = 8e6}}), {.nodes = 128}, Exchange::once_a_step);
  EXPECT_NEAR(step.unhidden_ms, 8 * 2 * (1 - 1.0 / 128) + 8e6 * 0.0002e-3, 1e-2);
}

// Of the second sum only the first step overlaps the first sum: 7 + 6 steps add, 6 + 6 bring results.
TEST(Predict, StepsOfHalvingFollowOneAnother) {
  Link far = megabyte_in_a_ms;
  far.latency_us = 1000;
  const Step step =
      predict(fast_machine(64), far, work_of({{.bytes = 1e3}, {.bytes = 1e3}}), {.nodes = 128}, Exchange::once_a_step);
  EXPECT_NEAR(step.unhidden_ms, 25, 0.1);
}

// Also where the sums between nodes pass from the direct algorithm to halving.
TEST(Predict, TheAssumedMachineIsNotFasterWithMoreNodes) {
  for (const double bytes : {27.4e6, 440e6}) {
    for (const double bucket_bytes : {4e6, 25e6}) {
      Work work = work_of({});
      const auto buckets = static_cast<int>(bytes / bucket_bytes);
      for (int i = 1; i <= buckets; ++i) work.buckets.push_back({bytes / buckets, static_cast<double>(i) / buckets});
      for (const double backward_ms : {20, 420}) {
        work.backward_ms = backward_ms;
        for (const int ranks_per_node : {1, 2, 8}) {
          for (const double cores : {0.5, 1.0, 2.0}) {
            Machine machine = assumed_machine;
            machine.cores = cores * ranks_per_node;
            for (const Link& link : known_links()) {
              double fewer_ms = 0;
              for (int nodes = 1; nodes <= 256; nodes *= 2) {
                const double ms =
                    predict(machine, link, work, {nodes, ranks_per_node}, Exchange::once_a_step).total_ms();
                EXPECT_GE(ms, fewer_ms * (1 - 1e-9))
                    << bytes << " bytes by " << bucket_bytes << ", backward " << backward_ms << " ms, "
                    << ranks_per_node << " ranks on " << machine.cores << " cores, " << link.name << ", " << nodes;
                fewer_ms = ms;
              }
            }
          }
        }
      }
    }
  }
}

TEST(Predict, MessagesSlowComputingIfNoCoreIsIdle) {
  Machine machine = fast_machine(1);
  machine.message_gb_per_s = 1;
  const Work work = work_of({{.bytes = 1e6, .ready = 0.01}});
  const auto unhidden = [&](double cores) {
    machine.cores = cores;
    return predict(machine, megabyte_in_a_ms, work, {.nodes = 2}, Exchange::once_a_step).unhidden_ms;
  };
  EXPECT_NEAR(unhidden(2), 0, 1e-3);
  EXPECT_NEAR(unhidden(1), 1, 1e-3);
}

TEST(Predict, SumsInTheNodeTakeTheirPartOfACore) {
  Machine machine = fast_machine(4);
  machine.sum_gb_per_s = 1;
  const auto node_ms = [&](double cores, int ranks) {
    machine.cores = cores;
    return predict(machine, megabyte_in_a_ms, work_of({{.bytes = 2e6}}), {.ranks_per_node = ranks},
                   Exchange::once_a_step)
        .node_ms;
  };
  EXPECT_NEAR(node_ms(8, 2), 2, 1e-3);
  EXPECT_NEAR(node_ms(2, 4), 4, 1e-3);
}

TEST(Predict, RefusesAnInvalidDescription) {
  const Work work = work_of({});
  const auto attempt = [&](const Machine& machine, const Link& link, const Layout& layout) {
    predict(machine, link, work, layout, Exchange::once_a_step);
  };
  EXPECT_THROW(attempt(fast_machine(0), megabyte_in_a_ms, {}), UsageError);
  EXPECT_THROW(attempt(fast_machine(1), {.gbit = 0}, {}), UsageError);
  EXPECT_THROW(attempt(fast_machine(1), megabyte_in_a_ms, {.nodes = 0}), UsageError);
}

// For any description: no part is negative, and a step takes at least the time of its computing and of its longest
// queue.
TEST(Predict, StaysWithinItsBoundsOnRandomDescriptions) {
  std::mt19937 random(7);
  const auto within = [&](double least, double most) {
    return std::uniform_real_distribution<double>(least, most)(random);
  };
  for (int trial = 0; trial < 2000; ++trial) {
    const Machine machine{.cores = within(0.3, 16),
                          .node_barrier_us = within(0, 50),
                          .sum_gb_per_s = within(1, 20),
                          .message_us = within(0, 500),
                          .message_cpu_us = within(0, 100),
                          .message_gb_per_s = within(0.5, 5)};
    const Link link{.name = "lab", .latency_us = within(0, 200), .gbit = within(0.05, 50)};
    Work work{.forward_ms = within(1, 50), .backward_ms = within(1, 100), .optimizer_ms = within(0, 5)};
    const auto buckets = random() % 8;
    double ready = 0;
    double bytes = 0;
    for (std::size_t i = 0; i < buckets; ++i) {
      ready = within(ready, 1);
      work.buckets.push_back({.bytes = within(1e3, 1e7), .ready = ready});
      bytes += work.buckets.back().bytes;
    }
    const Layout layout{.nodes = 1 + static_cast<int>(random() % 20),
                        .ranks_per_node = 1 + static_cast<int>(random() % 6)};
    const Step step = predict(machine, link, work, layout, Exchange::once_a_step);
    constexpr double rounding = 1e-6;
    EXPECT_GE(step.node_ms, -rounding) << trial;
    EXPECT_GE(step.hidden_ms, 0) << trial;
    EXPECT_GE(step.unhidden_ms, -rounding) << trial;
    EXPECT_GE(step.headers_ms, -rounding) << trial;
    const double link_ms = layout.nodes == 1 ? 0 : bytes * 2 * (1 - 1.0 / layout.nodes) / (link.gbit * 125e3 * payload);
    EXPECT_GE(step.total_ms() + rounding, step.computing_ms + step.optimizer_ms) << trial;
    EXPECT_GE(step.total_ms() + rounding, link_ms) << trial;
  }
}

}  // namespace
}  // namespace tutti::plan::predict_test
