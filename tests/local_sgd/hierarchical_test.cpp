// Two levels: averages inside simulated nodes, and between them.
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <mutex>

#include "local_sgd/local_run.h"
#include "local_sgd/node_groups.h"
#include "support/ranks.h"
#include "tutti/core/error.h"

namespace tutti::test::hierarchical_test {
namespace {

void on_thread_nodes(int size, int nodes, const std::function<void(const Communicator&)>& body) {
  SCOPED_TRACE(std::to_string(size) + " ranks on " + std::to_string(nodes) + " nodes");
  run_thread_ranks(size, body, {.timeout = std::chrono::seconds(30)}, nodes);
}

const std::vector<std::pair<int, int>>& layouts() {
  static const std::vector<std::pair<int, int>> all{{2, 1}, {2, 2}, {3, 1}, {3, 3}, {4, 2}, {4, 4}};
  return all;
}

/// The weight of a rank's step.
double weight_of(int rank, int step) {
  return 1 + (7 * rank + 3 * step) % 5;
}

/// The models of all ranks after `steps` steps: nodes average every 2 steps, all ranks every 4.
std::vector<Tensors> by_hand(const std::vector<int>& node_of_rank, int steps) {
  const std::size_t size = node_of_rank.size();
  const auto nodes = static_cast<std::size_t>(node_of_rank.back()) + 1;
  std::vector<Tensors> models(size);
  for (Tensors& model : models) model = initial_model();
  std::vector<double> since_node(size, 0), since_all(size, 0);
  for (int step = 0; step < steps; ++step) {
    for (std::size_t rank = 0; rank < size; ++rank) {
      sgd_step(models[rank], static_cast<int>(rank), step, 0.1);
      since_node[rank] += weight_of(static_cast<int>(rank), step);
      since_all[rank] += weight_of(static_cast<int>(rank), step);
    }
    if ((step + 1) % 2 != 0) continue;
    std::vector<Tensors> means;
    std::vector<double> weights;
    for (std::size_t node = 0; node < nodes; ++node) {
      std::vector<double> inside(size, 0);
      double weight = 0;
      for (std::size_t rank = 0; rank < size; ++rank) {
        if (static_cast<std::size_t>(node_of_rank[rank]) != node) continue;
        inside[rank] = since_node[rank];
        weight += since_all[rank];
      }
      means.push_back(mean_of(models, inside));
      weights.push_back(weight);
    }
    const bool all = (step + 1) % 4 == 0;
    const Tensors mean = mean_of(means, weights);
    for (std::size_t rank = 0; rank < size; ++rank) {
      models[rank] = copy_of(all ? mean : means[static_cast<std::size_t>(node_of_rank[rank])]);
      since_node[rank] = 0;
      if (all) since_all[rank] = 0;
    }
  }
  return models;
}

void compare_with_by_hand(const Communicator& communicator) {
  LocalRun run(communicator, {.updates = {.local_steps = 4, .node_sync_steps = 2}});
  for (int step = 0; step < 12; ++step) {
    run.step(weight_of(run.rank, step));
    const auto expected = by_hand(communicator.topology().node_of_rank, step + 1);
    EXPECT_LE(largest_difference(run.values(), expected[static_cast<std::size_t>(run.rank)]), 1e-6) << step;
  }
  EXPECT_TRUE(same_on_all_ranks(communicator, run.values()));
  EXPECT_EQ(run.algorithm->stats().rounds, 3);
  EXPECT_EQ(run.algorithm->stats().node_rounds, 3);
  run.steps(1);
  run.finish();
  EXPECT_TRUE(same_on_all_ranks(communicator, run.values()));
}

TEST(Hierarchical, AveragesInsideNodesAndBetweenThem) {
  for (const auto& [size, nodes] : layouts()) on_thread_nodes(size, nodes, compare_with_by_hand);
}

// Two nodes of two processes, and four of one: shared memory inside nodes, Gloo between them.
const RankProgram on_processes("local_sgd_on_nodes", [] {
  const auto in_pairs = Communicator::connect(on_nodes(2));
  compare_with_by_hand(in_pairs);
  const auto apart = Communicator::connect(on_nodes(4));
  compare_with_by_hand(apart);
});
TEST(Hierarchical, AveragesOnProcesses) {
  expect_success(run_processes(on_processes, 4));
}

/// Three ranks, two of them on the first node. Rank 0 and rank 2 exchange between nodes.
void on_unequal_nodes(const std::function<void(const Communicator&)>& body) {
  on_thread_nodes(4, 2, [&](const Communicator& communicator) {
    const auto some = communicator.split(communicator.rank() < 3 ? 0 : -1);
    if (some) body(*some);
  });
}

TEST(Hierarchical, SupportsNodesOfDifferentSizes) {
  on_unequal_nodes(compare_with_by_hand);
}

std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const UsageError&) {
    return "UsageError";
  } catch (const MismatchError&) {
    return "MismatchError";
  } catch (const TimeoutError&) {
    return "TimeoutError";
  } catch (const PeerError&) {
    return "PeerError";
  }
  return "none";
}

TEST(Hierarchical, AnErrorBetweenNodesReachesRanksOutsideThatExchange) {
  on_unequal_nodes([](const Communicator& communicator) {
    LocalRun run(communicator, {.updates = {.local_steps = 2, .node_sync_steps = 1}});
    run.step(0);
    EXPECT_EQ(error_of([&] { run.step(0); }), communicator.rank() == 1 ? "PeerError" : "UsageError");
    communicator.barrier().wait();  // no rank destroys its algorithm before all have the error
  });
}

// Rank 2 has no momentum: in an average inside its node, or at the end of a round.
TEST(Hierarchical, AMismatchInsideANodeReachesTheRanksOfOtherNodes) {
  for (const int mismatched : {1, 2}) {
    on_thread_nodes(4, 2, [mismatched](const Communicator& communicator) {
      const StateSync averaged{.momentum = MomentumRule::average};
      LocalRun run(communicator,
                   {.updates = {.local_steps = 2, .node_sync_steps = 1, .state_sync = averaged}, .momentum = 0.9});
      const auto train = [&] {
        for (int step = 1; step <= 2; ++step) {
          if (run.rank != 2 || step != mismatched) {
            run.step();
          } else {
            run.optimizer->state().clear();
            run.algorithm->step();
          }
        }
      };
      EXPECT_EQ(error_of(train), communicator.topology().node_rank == 1 ? "MismatchError" : "PeerError");
      communicator.barrier().wait();  // no rank destroys its algorithm before all have the error
    });
  }
}

TEST(Hierarchical, WorksWithEveryMethodAndWireFormat) {
  for (const auto method : {OuterOptimizer::average, OuterOptimizer::slowmo, OuterOptimizer::diloco}) {
    for (const auto wire : {WireFormat::fp32, WireFormat::bf16, WireFormat::int8}) {
      on_thread_nodes(4, 2, [&](const Communicator& communicator) {
        const LocalSgdAlgorithmOptions options{
            .local_steps = 4, .outer_optimizer = method, .node_sync_steps = 2, .wire = wire};
        LocalRun run(communicator, {.updates = options});
        LocalRun flat(communicator, {.updates = {.local_steps = 4, .outer_optimizer = method}});
        for (int round = 0; round < 3; ++round) {
          run.steps(4);
          flat.steps(4);
          EXPECT_TRUE(same_on_all_ranks(communicator, run.values()));
          // Averages in between change nothing for a gradient that is linear in the model.
          const double way = largest_difference(run.values(), initial_model());
          const double difference = largest_difference(run.values(), flat.values());
          // What a round moves is rounded to 8 binary digits, or to 127 steps of a block's largest element.
          const double rounding = wire == WireFormat::bf16 ? 2.0 / 256 : 3.0 / 254;
          EXPECT_LE(difference, (wire == WireFormat::fp32 ? 2e-6 : rounding) * way);
          EXPECT_EQ(difference > 1e-5 * way, wire != WireFormat::fp32) << "the wire format has not arrived";
        }
      });
    }
  }
}

// One vector per node: 2 n (M - 1) bytes for M nodes, for any number of ranks.
TEST(Hierarchical, SendsOneVectorBetweenNodes) {
  for (const auto& [size, nodes] : {std::pair(4, 2), std::pair(4, 4), std::pair(6, 2), std::pair(6, 3)}) {
    std::mutex mutex;
    std::int64_t between = 0, flat_between = 0;
    on_thread_nodes(size, nodes, [&](const Communicator& communicator) {
      const at::Tensor parameter = at::zeros({12'000}).set_requires_grad(true);
      LocalSgdAlgorithmOptions options{
          .local_steps = 2, .node_sync_steps = 1, .state_sync = {.buffers = BufferRule::local}};
      LocalSgdAlgorithm algorithm({{"p", parameter}}, {}, nullptr, communicator.duplicate("two levels"), options);
      options.node_sync_steps = 0;
      LocalSgdAlgorithm flat({{"p", parameter}}, {}, nullptr, communicator.duplicate("one level"), options);
      for (int step = 0; step < 2; ++step) {
        algorithm.step();
        flat.step();
      }
      const std::lock_guard lock(mutex);
      between += algorithm.stats().bytes_between_nodes;
      flat_between += flat.stats().bytes_between_nodes;
    });
    const double vector = 4.0 * 12'000;
    EXPECT_NEAR(static_cast<double>(between), 2 * vector * (nodes - 1), 1000);
    EXPECT_NEAR(static_cast<double>(flat_between), 2 * vector * (size - size / nodes), 1000);
  }
}

TEST(Hierarchical, ANodeWithWeightZeroContributesNothing) {
  on_thread_nodes(4, 2, [](const Communicator& communicator) {
    const std::vector<double> weights{0, 0, 1, 3};
    LocalRun run(communicator, {.updates = {.local_steps = 2, .node_sync_steps = 1}});
    run.step(weights[static_cast<std::size_t>(run.rank)]);
    const Tensors after_one = run.values();
    run.step(0);  // nothing weighs anything since nodes met, but the round does
    std::vector<Tensors> models;
    Tensors second_node = after_one;
    for (at::Tensor& tensor : second_node) {
      tensor = tensor.contiguous();
      communicator.broadcast(tensor, 2).wait();
    }
    for (int rank = 2; rank < 4; ++rank) {
      models.push_back(copy_of(second_node));
      sgd_step(models.back(), rank, 1, 0.1);
    }
    EXPECT_LE(largest_difference(run.values(), mean_of(models)), 1e-6);
    EXPECT_TRUE(same_on_all_ranks(communicator, run.values()));
  });
}

TEST(Hierarchical, ARoundWithWeightZeroIsAnErrorOnAllRanks) {
  on_thread_nodes(4, 2, [](const Communicator& communicator) {
    LocalRun run(communicator, {.updates = {.local_steps = 2, .node_sync_steps = 1}});
    run.step(0);
    EXPECT_THROW(run.step(0), UsageError);
  });
}

}  // namespace
}  // namespace tutti::test::hierarchical_test
