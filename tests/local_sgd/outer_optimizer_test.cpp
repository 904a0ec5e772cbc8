// SlowMo and DiLoCo over ranks, compared with Local SGD and with the papers' formulas.
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include "local_sgd/local_run.h"
#include "support/rank_case.h"
#include "tutti/core/error.h"

namespace tutti::test::outer_optimizer_test {
namespace {

const LocalSgdAlgorithmOptions slowmo_without_momentum{
    .local_steps = 3, .outer_optimizer = OuterOptimizer::slowmo, .slowmo = {.alpha = 1, .beta = 0}};
const LocalSgdAlgorithmOptions diloco_without_momentum{
    .local_steps = 3, .outer_optimizer = OuterOptimizer::diloco, .diloco = {.lr = 1, .momentum = 0}};

const RankCase plain("outer_methods_plain", [](const Communicator& communicator) {
  LocalRun expected(communicator, {.updates = {.local_steps = 3}});
  LocalRun slowmo(communicator, {.updates = slowmo_without_momentum});
  LocalRun diloco(communicator, {.updates = diloco_without_momentum});
  for (LocalRun* run : {&expected, &slowmo, &diloco}) {
    run->steps(10);
    run->finish();
  }
  EXPECT_LE(largest_difference(slowmo.values(), expected.values()), 1e-6);
  EXPECT_LE(largest_difference(diloco.values(), expected.values()), 1e-6);
  EXPECT_TRUE(same_on_all_ranks(communicator, slowmo.values()));
  EXPECT_TRUE(same_on_all_ranks(communicator, diloco.values()));
});
TEST(OuterOptimizers, WithoutMomentumAreLocalSgd) {
  plain.on_threads({1, 2, 3, 4});
  plain.on_processes({2});
}

// Two rounds, computed on rank 0 with copies of all ranks' models.
template <typename Rule>
Tensors by_hand(int size, int local_steps, int rounds, Rule rule) {
  Tensors anchor = initial_model(), momentum;
  for (const at::Tensor& tensor : anchor) momentum.push_back(tensor * 0);
  for (int round = 0; round < rounds; ++round) {
    std::vector<Tensors> models;
    for (int rank = 0; rank < size; ++rank) {
      models.push_back(copy_of(anchor));
      for (int step = 0; step < local_steps; ++step) sgd_step(models.back(), rank, round * local_steps + step, 0.1);
    }
    const Tensors mean = mean_of(models);
    for (std::size_t i = 0; i < anchor.size(); ++i) rule(anchor[i], momentum[i], mean[i]);
  }
  return anchor;
}

const RankCase with_momentum("outer_methods_momentum", [](const Communicator& communicator) {
  LocalRun slowmo(communicator, {.updates = {.local_steps = 3, .outer_optimizer = OuterOptimizer::slowmo}});
  LocalRun diloco(communicator, {.updates = {.local_steps = 3, .outer_optimizer = OuterOptimizer::diloco}});
  slowmo.steps(9);
  diloco.steps(9);
  const Tensors slow = by_hand(communicator.size(), 3, 3, [](at::Tensor& x, at::Tensor& u, const at::Tensor& mean) {
    u = 0.5 * u + (x - mean) / 0.1;
    x = x - 0.1 * u;
  });
  const Tensors outer = by_hand(communicator.size(), 3, 3, [](at::Tensor& x, at::Tensor& m, const at::Tensor& mean) {
    const at::Tensor gradient = x - mean;
    m = 0.9 * m + gradient;
    x = x - 0.7 * (gradient + 0.9 * m);
  });
  EXPECT_LE(largest_difference(slowmo.values(), slow), 1e-5);
  EXPECT_LE(largest_difference(diloco.values(), outer), 1e-5);
  EXPECT_TRUE(same_on_all_ranks(communicator, slowmo.values()));
  EXPECT_TRUE(same_on_all_ranks(communicator, diloco.values()));
});
TEST(OuterOptimizers, FollowTheirPapersOverRanks) {
  with_momentum.on_threads({1, 2, 3, 4});
  with_momentum.on_processes({2});
}

void set_rate(LocalRun& run, double rate) {
  for (auto& group : run.optimizer->param_groups()) group.options().set_lr(rate);
}

// Ranks may have skipped different steps, so a schedule may have reached 0 on some ranks only.
TEST(SlowMo, RefusesARateOfZeroOfRankZeroOnAllRanks) {
  for (const int node_sync_steps : {0, 1}) {
    const LocalSgdAlgorithmOptions options{
        .local_steps = 2, .outer_optimizer = OuterOptimizer::slowmo, .node_sync_steps = node_sync_steps};
    const auto with_rate_zero = [&](bool on_rank_zero, const std::function<void(LocalRun&)>& body) {
      const auto ranks = [&](const Communicator& communicator) {
        LocalRun run(communicator, {.updates = options});
        set_rate(run, (communicator.rank() == 0) == on_rank_zero ? 0 : 0.1);
        run.step();
        body(run);
        EXPECT_EQ(same_on_all_ranks(communicator, run.values()), !on_rank_zero);
      };
      run_thread_ranks(4, ranks, {.timeout = std::chrono::seconds(30)}, 2);
    };
    with_rate_zero(true, [](LocalRun& run) {
      EXPECT_THROW(run.step(), UsageError);
      EXPECT_THROW(run.finish(), UsageError);
    });
    with_rate_zero(true, [](LocalRun& run) { EXPECT_THROW(run.finish(), UsageError); });
    with_rate_zero(false, [](LocalRun& run) { run.step(); });
    with_rate_zero(false, [](LocalRun& run) { run.finish(); });
  }
}

// A schedule sets the rate of the next step before LocalSGD counts the step. gamma is the rate of the step before.
const RankCase slowmo_rates("slowmo_rates", [](const Communicator& communicator) {
  const LocalSgdAlgorithmOptions options{.local_steps = 3, .outer_optimizer = OuterOptimizer::slowmo};
  LocalRun run(communicator, {.updates = options});
  for (int step = 0; step < 9; ++step) {
    const StateDict saved = run.algorithm->state_dict();
    run.algorithm->load_state_dict(saved);  // as after a resume
    set_rate(run, 0.1);
    // Ranks may have skipped different steps, so their schedules may differ: the rate of rank 0 counts.
    run.step(1, {0.1 + 0.1 * communicator.rank()});
    set_rate(run, 0);
  }
  const Tensors expected = by_hand(communicator.size(), 3, 3, [](at::Tensor& x, at::Tensor& u, const at::Tensor& mean) {
    u = 0.5 * u + (x - mean) / 0.1;
    x = x - 0.1 * u;
  });
  EXPECT_LE(largest_difference(run.values(), expected), 1e-5);
  EXPECT_TRUE(same_on_all_ranks(communicator, run.values()));
  // finish() after a resume within a round: the rate of the last step is in the state.
  set_rate(run, 0.1);
  run.step(1, {0.1});
  set_rate(run, 0);
  const StateDict saved = run.algorithm->state_dict();
  EXPECT_EQ(saved.get<std::vector<double>>("step_rates"), std::vector<double>{0.1});
  run.algorithm->load_state_dict(saved);
  run.finish();
});
TEST(SlowMo, UsesRankZerosRateOfTheLastStep) {
  slowmo_rates.on_threads({1, 2, 3});
  slowmo_rates.on_processes({2});
}

TEST(SlowMo, NeedsTheOptimizer) {
  const at::Tensor parameter = initial_model()[0].set_requires_grad(true);
  const std::vector<NamedParameter> named{{"p", parameter}};
  const LocalSgdAlgorithmOptions options{.outer_optimizer = OuterOptimizer::slowmo};
  EXPECT_THROW(LocalSgdAlgorithm(named, {}, nullptr, Communicator(), options), UsageError);
  const auto other = std::make_shared<torch::optim::SGD>(Tensors{initial_model()[1]}, torch::optim::SGDOptions(0.1));
  EXPECT_THROW(LocalSgdAlgorithm(named, {}, other, Communicator(), options), UsageError);
}

}  // namespace
}  // namespace tutti::test::outer_optimizer_test
