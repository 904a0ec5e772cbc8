// Local SGD averages models, with and without weights and warm-up. 1 to 4 ranks as threads, 2 as processes.
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <limits>

#include "local_sgd/local_run.h"
#include "support/process_case.h"
#include "support/rank_case.h"
#include "tutti/core/error.h"

namespace tutti::test::averaging_test {
namespace {

/// The models of `size` ranks that average every `local_steps`, computed on one rank.
Tensors averaged_by_hand(int size, int local_steps, int steps, const std::vector<double>& weights = {},
                         at::ScalarType dtype = at::kFloat) {
  std::vector<Tensors> models;
  for (int rank = 0; rank < size; ++rank) models.push_back(initial_model(dtype));
  for (int step = 0; step < steps; ++step) {
    for (int rank = 0; rank < size; ++rank) sgd_step(models[static_cast<std::size_t>(rank)], rank, step, 0.1);
    if ((step + 1) % local_steps != 0) continue;
    const Tensors mean = mean_of(models, weights);
    for (Tensors& model : models) model = copy_of(mean);
  }
  return mean_of(models, weights);
}

std::vector<double> weights_of(int size) {
  std::vector<double> weights;
  for (int rank = 0; rank < size; ++rank) weights.push_back(0.5 + 3 * rank);
  return weights;
}

const RankCase averages("local_sgd_averages", [](const Communicator& communicator) {
  for (const int local_steps : {1, 3, 4}) {
    LocalRun run(communicator, {.updates = {.local_steps = local_steps}});
    for (int round = 1; round <= 3; ++round) {
      run.steps(local_steps - 1);
      if (local_steps > 1) {
        EXPECT_EQ(same_on_all_ranks(communicator, run.values()), communicator.size() == 1);
      }
      run.steps(1);
      EXPECT_TRUE(same_on_all_ranks(communicator, run.values()));
      const Tensors expected = averaged_by_hand(communicator.size(), local_steps, round * local_steps);
      EXPECT_LE(largest_difference(run.values(), expected), 1e-6);
    }
    EXPECT_EQ(run.algorithm->stats().rounds, communicator.size() == 1 ? 0 : 3);
  }
});
TEST(LocalSgd, IsTheMeanOfAllModelsAfterEveryRound) {
  averages.on_threads({1, 2, 3, 4});
  averages.on_processes({2});
}

const RankCase weighs("local_sgd_weighs", [](const Communicator& communicator) {
  const auto weights = weights_of(communicator.size());
  LocalRun run(communicator, {.updates = {.local_steps = 4}});
  const double mine = weights[static_cast<std::size_t>(communicator.rank())];
  // The weight of a round is the sum of the weights of its steps.
  for (const double share : {0.5, 0.0, 0.25, 0.25}) run.step(share * mine);
  EXPECT_TRUE(same_on_all_ranks(communicator, run.values()));
  EXPECT_LE(largest_difference(run.values(), averaged_by_hand(communicator.size(), 4, 4, weights)), 1e-6);

  // The next round begins with weight 0.
  std::vector<Tensors> models;
  for (int rank = 0; rank < communicator.size(); ++rank) {
    models.push_back(run.values());
    for (int step = 4; step < 8; ++step) sgd_step(models.back(), rank, step, 0.1);
  }
  const std::vector<double> reversed(weights.rbegin(), weights.rend());
  for (int step = 0; step < 4; ++step) run.step(reversed[static_cast<std::size_t>(communicator.rank())]);
  EXPECT_LE(largest_difference(run.values(), mean_of(models, reversed)), 1e-6);
});
TEST(LocalSgd, WeighsModelsByTheirSteps) {
  weighs.on_threads({1, 2, 3, 4});
  weighs.on_processes({2});
}

TEST(LocalSgd, ARankWithWeightZeroContributesNothing) {
  for (const WireFormat wire : {WireFormat::fp32, WireFormat::int8}) {
    run_thread_ranks(3, [&](const Communicator& communicator) {
      LocalRun run(communicator, {.updates = {.local_steps = 2, .wire = wire}});
      const bool out = communicator.rank() == 1;
      run.step(out ? 0 : 1);
      if (out) {
        const at::NoGradGuard no_grad;
        run.parameters[0].fill_(std::numeric_limits<float>::quiet_NaN());
      }
      run.step(out ? 0 : 1);
      EXPECT_TRUE(same_on_all_ranks(communicator, run.values()));
      EXPECT_LE(largest_difference(run.values(), averaged_by_hand(3, 2, 2, {1, 0, 1})),
                wire == WireFormat::fp32 ? 1e-6 : 0.01);
      run.steps(2);
      EXPECT_LE(largest_difference(run.values(), run.values()), 0);  // no NaN
    });
  }
}

// A NaN on one rank makes the parameter NaN on all ranks, with every wire format.
const ProcessCase nan_that_weighs("averaging: a NaN that weighs", [](const Communicator& communicator) {
  for (const WireFormat wire : {WireFormat::fp32, WireFormat::bf16, WireFormat::int8}) {
    LocalRun run(communicator, {.updates = {.local_steps = 2, .wire = wire}});
    run.step(1 + communicator.rank());
    if (communicator.rank() == 1) {
      const at::NoGradGuard no_grad;
      run.parameters[0].fill_(std::numeric_limits<float>::quiet_NaN());
    }
    run.step(1);
    EXPECT_TRUE(run.values()[0].isnan().all().item<bool>()) << static_cast<int>(wire);
    if (wire == WireFormat::fp32) {
      for (std::size_t i = 1; i < run.values().size(); ++i) EXPECT_FALSE(run.values()[i].isnan().any().item<bool>());
    }
  }
});
TEST(LocalSgd, ANaNWithAPositiveWeightReachesAllRanks) {
  nan_that_weighs.on_threads({2, 3});
}

TEST(LocalSgd, RefusesARoundWithWeightZero) {
  run_thread_ranks(2, [](const Communicator& communicator) {
    LocalRun run(communicator, {.updates = {.local_steps = 2}});
    EXPECT_THROW(run.step(-1), UsageError);
    EXPECT_THROW(run.step(std::numeric_limits<double>::infinity()), UsageError);
    run.step(0);
    EXPECT_THROW(run.step(0), UsageError);
    EXPECT_THROW(run.step(1), UsageError);  // every later call throws
    EXPECT_THROW(run.finish(), UsageError);
  });
}

// After one step of SGD, averaging models equals averaging gradients.
const RankCase synchronous("local_sgd_synchronous", [](const Communicator& communicator) {
  LocalRun run(communicator, {.updates = {.local_steps = 1}});
  run.steps(5);
  const Tensors model = initial_model();
  for (int step = 0; step < 5; ++step) {
    std::vector<Tensors> gradients(static_cast<std::size_t>(communicator.size()));
    for (int rank = 0; rank < communicator.size(); ++rank) {
      for (std::size_t i = 0; i < model.size(); ++i) {
        gradients[static_cast<std::size_t>(rank)].push_back(gradient(model[i], static_cast<int>(i), rank, step));
      }
    }
    const Tensors mean = mean_of(gradients);
    for (std::size_t i = 0; i < model.size(); ++i) model[i].sub_(mean[i], 0.1);
  }
  EXPECT_LE(largest_difference(run.values(), model), 1e-6);
});
TEST(LocalSgd, OneLocalStepIsSynchronousSgd) {
  synchronous.on_threads({1, 2, 3, 4});
  synchronous.on_processes({2});
}

const RankCase finishes("local_sgd_finishes", [](const Communicator& communicator) {
  LocalRun run(communicator, {.updates = {.local_steps = 4}});
  run.steps(6);
  run.finish();
  EXPECT_TRUE(same_on_all_ranks(communicator, run.values()));
  const Tensors finished = run.values();
  run.finish();
  EXPECT_TRUE(same_bits(run.values(), finished));  // no progress to average
  // finish() begins a round: the next one ends after four steps, not after two.
  run.steps(3);
  EXPECT_EQ(same_on_all_ranks(communicator, run.values()), communicator.size() == 1);
  run.steps(1);
  EXPECT_TRUE(same_on_all_ranks(communicator, run.values()));
});
TEST(LocalSgd, FinishAveragesTheRestAndBeginsARound) {
  finishes.on_threads({1, 2, 3, 4});
  finishes.on_processes({2});
}

TEST(LocalSgd, OneRankTrainsAsWithoutLocalSgd) {
  for (const auto& updates :
       {LocalSgdAlgorithmOptions{.local_steps = 2},
        LocalSgdAlgorithmOptions{.local_steps = 2, .wire = WireFormat::int8},
        LocalSgdAlgorithmOptions{.local_steps = 4, .streaming = {.fragments = 2, .overlap_steps = 1, .mix = 0.5}}}) {
    LocalRun run(Communicator(), {.updates = updates});
    run.steps(9);
    run.finish();
    const Tensors model = initial_model();
    for (int step = 0; step < 9; ++step) sgd_step(model, 0, step, 0.1);
    EXPECT_TRUE(same_bits(run.values(), model));
    EXPECT_EQ(run.algorithm->stats().bytes_sent, 0);
    EXPECT_EQ(run.algorithm->stats().rounds, 0);
  }
}

// Differences of doubles are sent as fp32, which is more precise than sending the models as fp32.
TEST(LocalSgd, KeepsThePrecisionOfDoubles) {
  run_thread_ranks(3, [](const Communicator& communicator) {
    LocalRun run(communicator, {.updates = {.local_steps = 2}, .dtype = at::kDouble});
    {
      const at::NoGradGuard no_grad;
      run.parameters[0].mul_(1e6);
    }
    LocalSgdAlgorithm algorithm({{"p", run.parameters[0]}}, {}, nullptr, communicator.duplicate("double"),
                                {.local_steps = 1});
    const at::Tensor expected = run.parameters[0].detach() + 2e-3;
    {
      const at::NoGradGuard no_grad;
      run.parameters[0].add_(1e-3 * (communicator.rank() + 1));
    }
    algorithm.step();
    EXPECT_LE(largest_difference({run.parameters[0]}, {expected}), 1e-8);
    EXPECT_TRUE(same_on_all_ranks(communicator, {run.parameters[0]}));
    run.steps(2);
    EXPECT_TRUE(same_on_all_ranks(communicator, run.values()));
  });
}

TEST(LocalSgd, DoesNotChangeFrozenParameters) {
  run_thread_ranks(2, [](const Communicator& communicator) {
    const at::Tensor trained = initial_model()[0], frozen = initial_model()[1];
    trained.set_requires_grad(true);
    LocalSgdAlgorithm algorithm({{"frozen", frozen}, {"trained", trained}, {"tied", trained}}, {}, nullptr,
                                communicator.duplicate("frozen"), {.local_steps = 1});
    {
      const at::NoGradGuard no_grad;
      frozen.add_(communicator.rank());
      trained.add_(communicator.rank());
    }
    algorithm.step();
    EXPECT_LE(largest_difference({frozen}, {initial_model()[1] + communicator.rank()}), 0);
    EXPECT_LE(largest_difference({trained}, {initial_model()[0] + 0.5}), 1e-6);
  });
}

TEST(PostLocalSgd, SynchronizesGradientsInTheWarmup) {
  run_thread_ranks(3, [](const Communicator& communicator) {
    for (const auto method : {OuterOptimizer::average, OuterOptimizer::diloco}) {
      LocalRun run(communicator, {.updates = {.local_steps = 2, .warmup_steps = 3, .outer_optimizer = method}});
      const int rank = run.rank;
      run.rank = 0;  // as if gradients were synchronized
      for (int step = 0; step < 3; ++step) {
        EXPECT_TRUE(run.algorithm->synchronous());
        run.step();
      }
      EXPECT_FALSE(run.algorithm->synchronous());
      EXPECT_EQ(run.algorithm->stats().rounds, 0);
      EXPECT_EQ(run.algorithm->stats().bytes_sent, 0);
      run.rank = rank;
      const Tensors before = run.values();
      run.steps(1);
      EXPECT_FALSE(same_on_all_ranks(communicator, run.values()));
      run.steps(1);
      EXPECT_TRUE(same_on_all_ranks(communicator, run.values()));
      if (method == OuterOptimizer::average) continue;
      // The anchor is the model at the end of the warm-up: x0 + lr (1 + momentum) (mean - x0) in the first round.
      std::vector<Tensors> models(3);
      for (int other = 0; other < 3; ++other) {
        models[static_cast<std::size_t>(other)] = copy_of(before);
        for (int step = 3; step < 5; ++step) sgd_step(models[static_cast<std::size_t>(other)], other, step, 0.1);
      }
      const Tensors mean = mean_of(models);
      Tensors expected;
      for (std::size_t i = 0; i < mean.size(); ++i) expected.push_back(before[i] + 0.7 * 1.9 * (mean[i] - before[i]));
      EXPECT_LE(largest_difference(run.values(), expected), 1e-5);
    }
  });
}

}  // namespace
}  // namespace tutti::test::averaging_test
