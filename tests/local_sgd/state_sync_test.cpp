// How buffers and the inner optimizer's state are combined. 1 to 4 ranks as threads, 2 as processes.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/sgd.h>

#include "local_sgd/local_run.h"
#include "support/rank_case.h"
#include "tutti/core/error.h"
#include "tutti/detail/optim/optimizer_state.h"

namespace tutti::test::state_sync_test {
namespace {

Tensors momentum_of(const LocalRun& run) {
  const std::vector<std::string> names{"0", "1", "2", "3"};
  Tensors tensors;
  const StateDict state = optimizer_state(*run.optimizer, names);
  for (const auto& [key, value] : state.values()) {
    const auto* tensor = std::get_if<at::Tensor>(&value);
    if (tensor != nullptr && key.starts_with("state.")) tensors.push_back(tensor->clone());
  }
  return tensors;
}

// Buffers after every round, and after finish() within a round.
const RankCase buffers("contract_buffers", [](const Communicator& communicator) {
  const int size = communicator.size(), rank = communicator.rank();
  for (const auto rule : {BufferRule::average, BufferRule::broadcast, BufferRule::local}) {
    LocalRun run(communicator, {.updates = {.local_steps = 2, .state_sync = {.buffers = rule}}});
    run.counter.add_(10 * rank);
    const double weight = 1 + rank;
    run.step(weight);
    run.step(weight);  // the floating buffer is 2 (rank + 1), the counter 10 rank + 2
    double total = 0, mean = 0;
    for (int other = 0; other < size; ++other) {
      total += 1 + other;
      mean += (1 + other) * 2.0 * (other + 1);
    }
    mean /= total;
    const bool average = rule == BufferRule::average, local = rule == BufferRule::local;
    EXPECT_NEAR(run.buffer[0].item<double>(), average ? mean : local ? 2.0 * (rank + 1) : 2, 1e-6);
    EXPECT_EQ(run.counter.item<std::int64_t>(), average ? 10 * (size - 1) + 2 : local ? 10 * rank + 2 : 2);
    run.step(weight);
    EXPECT_EQ(same_on_all_ranks(communicator, {run.buffer}), size == 1);
    run.finish();
    EXPECT_EQ(same_on_all_ranks(communicator, {run.buffer, run.counter}), size == 1 || !local);
  }
});
TEST(StateSync, CombinesBuffersByTheirRule) {
  buffers.on_threads({1, 2, 3, 4});
  buffers.on_processes({2});
}

TEST(StateSync, CombinesBuffersInsideNodesAndBetweenThem) {
  const auto body = [](const Communicator& communicator) {
    LocalRun run(communicator, {.updates = {.local_steps = 2, .node_sync_steps = 1}});
    run.step();  // (1 + 2) / 2 on the first node, (3 + 4) / 2 on the second
    EXPECT_NEAR(run.buffer[0].item<double>(), communicator.rank() < 2 ? 1.5 : 3.5, 1e-6);
    run.step();
    EXPECT_NEAR(run.buffer[0].item<double>(), 5, 1e-6);
    EXPECT_TRUE(same_on_all_ranks(communicator, {run.buffer, run.counter}));
  };
  run_thread_ranks(4, body, {.timeout = std::chrono::seconds(30)}, 2);
}

TEST(StateSync, StreamingCombinesBuffersInFinish) {
  run_thread_ranks(3, [](const Communicator& communicator) {
    LocalRun run(communicator, {.updates = {.local_steps = 4, .streaming = {.fragments = 2, .overlap_steps = 1}}});
    run.steps(9);
    EXPECT_NEAR(run.buffer[0].item<double>(), 9.0 * (run.rank + 1), 1e-6);
    run.finish();
    EXPECT_NEAR(run.buffer[0].item<double>(), 18, 1e-5);
    EXPECT_TRUE(same_on_all_ranks(communicator, {run.buffer, run.counter}));
  });
}

TEST(StateSync, FinishInTheWarmupCombinesBuffers) {
  run_thread_ranks(2, [](const Communicator& communicator) {
    LocalRun run(communicator, {.updates = {.local_steps = 2, .warmup_steps = 5}});
    run.rank = 0;  // as if gradients were synchronized
    run.steps(2);
    run.buffer.add_(communicator.rank());
    const Tensors before = run.values();
    run.finish();
    EXPECT_TRUE(same_bits(run.values(), before));
    EXPECT_NEAR(run.buffer[0].item<double>(), 2.5, 1e-6);
    EXPECT_TRUE(run.algorithm->synchronous());
  });
}

const RankCase momentum("contract_momentum", [](const Communicator& communicator) {
  const int size = communicator.size();
  for (const bool adam : {false, true}) {
    for (const auto rule : {MomentumRule::local, MomentumRule::average}) {
      RunOptions options{
          .updates = {.local_steps = 3, .state_sync = {.momentum = rule}}, .momentum = 0.9, .adam = adam};
      LocalRun run(communicator, options);
      run.steps(2);
      // The momentum of every rank after the third step without an average.
      RunOptions alone = options;
      alone.updates = {.local_steps = 3};
      std::vector<Tensors> all;
      for (int rank = 0; rank < size; ++rank) {
        LocalRun other(Communicator(), alone);
        other.rank = rank;
        other.steps(3);
        all.push_back(momentum_of(other));
      }
      run.steps(1);
      ASSERT_EQ(momentum_of(run).size(), adam ? 8U : 4U);
      const Tensors expected =
          rule == MomentumRule::average ? mean_of(all) : all[static_cast<std::size_t>(communicator.rank())];
      EXPECT_LE(largest_difference(momentum_of(run), expected), 1e-6);
      if (rule == MomentumRule::average) {
        EXPECT_TRUE(same_on_all_ranks(communicator, momentum_of(run)));
      }
    }
  }
});
TEST(StateSync, AveragesMomentumOrKeepsItLocal) {
  momentum.on_threads({1, 2, 3, 4});
  momentum.on_processes({2});
}

TEST(StateSync, AveragesMomentumOfDoubles) {
  run_thread_ranks(2, [](const Communicator& communicator) {
    LocalRun run(communicator, {.updates = {.local_steps = 2, .state_sync = {.momentum = MomentumRule::average}},
                                .momentum = 0.9,
                                .dtype = at::kDouble});
    run.steps(2);
    EXPECT_EQ(momentum_of(run).front().scalar_type(), at::kDouble);
    EXPECT_TRUE(same_on_all_ranks(communicator, momentum_of(run)));
    EXPECT_TRUE(same_on_all_ranks(communicator, run.values()));
  });
}

TEST(StateSync, RefusesDifferentOptimizerStateOnTwoRanks) {
  run_thread_ranks(2, [](const Communicator& communicator) {
    LocalRun run(communicator,
                 {.updates = {.local_steps = 1, .state_sync = {.momentum = MomentumRule::average}}, .momentum = 0.9});
    if (communicator.rank() == 0) {
      EXPECT_THROW(run.step(), MismatchError);
    } else {
      EXPECT_THROW(run.algorithm->step(), MismatchError);  // this rank has made no optimizer step
    }
  });
}

TEST(StateSync, RefusesStateThatItCannotCombine) {
  const at::Tensor parameter = initial_model()[0].set_requires_grad(true);
  const std::vector<NamedParameter> named{{"p", parameter}};
  const auto make = [&](const std::vector<NamedParameter>& parameters, const std::vector<NamedParameter>& with,
                        std::shared_ptr<torch::optim::Optimizer> optimizer, const StateSync& state_sync) {
    LocalSgdAlgorithm(parameters, with, std::move(optimizer), Communicator(), {.state_sync = state_sync});
  };
  const StateSync averaged{.momentum = MomentumRule::average};
  EXPECT_THROW(make(named, {}, nullptr, averaged), UsageError);
  const auto lbfgs = std::make_shared<torch::optim::LBFGS>(Tensors{parameter});
  EXPECT_THROW(make(named, {}, lbfgs, averaged), UsageError);
  const auto other = std::make_shared<torch::optim::SGD>(Tensors{initial_model()[1].set_requires_grad(true)},
                                                         torch::optim::SGDOptions(0.1));
  EXPECT_THROW(make(named, {}, other, averaged), UsageError);
  const at::Tensor complex = at::zeros({2}, at::kComplexFloat);
  EXPECT_THROW(make(named, {{"b", complex}}, nullptr, {}), UsageError);
  make(named, {{"b", complex}}, nullptr, {.buffers = BufferRule::local});
  EXPECT_THROW(make({}, {}, nullptr, {}), UsageError);
  EXPECT_THROW(make({{"p", at::zeros({4}, at::kHalf).set_requires_grad(true)}}, {}, nullptr, {}), UsageError);
  EXPECT_THROW(make({{"p", at::zeros({4, 4}).slice(1, 0, 2).set_requires_grad(true)}}, {}, nullptr, {}), UsageError);
}

}  // namespace
}  // namespace tutti::test::state_sync_test
