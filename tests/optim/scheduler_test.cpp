#include "tutti/optim/scheduler.h"

#include <gtest/gtest.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adamw.h>

#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include "optim/one_rank.h"
#include "tutti/core/error.h"
#include "tutti/detail/sync/sync_scopes.h"
#include "tutti/optim/schedules.h"

namespace tutti::scheduler_test {
namespace {

using test::OneRank;
using Rates = std::vector<double>;

/// One micro-batch of a window, as Accelerator::accumulate() opens it.
AccumulateScope micro_batch(const OneRank& rank, bool ends_window) {
  return AccumulateScope({{.reducer = rank.reducer, .step = {.weight = 1, .syncs = ends_window}}});
}

TEST(Scheduler, SetsTheFirstRateAtOnceAndMovesEveryGroup) {
  const OneRank rank;
  Optimizer optimizer = rank.sgd({1.0, 10.0});
  Scheduler scheduler(optimizer, linear_with_warmup(2, 4));
  EXPECT_EQ(scheduler.last_rates(), (Rates{0, 0}));
  std::vector<Rates> rates;
  for (int i = 0; i < 4; ++i) {
    rank.backward();
    optimizer.step();
    scheduler.step();
    optimizer.zero_grad();
    rates.push_back(scheduler.last_rates());
  }
  EXPECT_EQ(rates, (std::vector<Rates>{{0.5, 5}, {1, 10}, {0.5, 5}, {0, 0}}));
  EXPECT_EQ(optimizer.learning_rate(), 0.0);
  EXPECT_EQ(scheduler.position(), 4);
}

TEST(Scheduler, MovesAGroupThatIsAddedLaterFromItsOwnRate) {
  const OneRank rank;
  Optimizer optimizer = rank.sgd({1.0});
  Scheduler scheduler(optimizer, linear_with_warmup(0, 4));
  rank.backward();
  optimizer.step();
  optimizer.inner().add_param_group(
      {std::vector<at::Tensor>{at::zeros({1})}, std::make_unique<torch::optim::SGDOptions>(10.0)});
  scheduler.step();
  EXPECT_EQ(scheduler.last_rates(), (Rates{0.75, 7.5}));
  scheduler.step();
  EXPECT_EQ(scheduler.last_rates(), (Rates{0.5, 5}));
}

TEST(PreparedOptimizer, RefusesALearningRateThatIsNoRate) {
  const OneRank rank;
  Optimizer optimizer = rank.sgd({1.0});
  for (const double bad : {-0.1, std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_THROW(optimizer.set_learning_rate(bad), UsageError);
  }
  EXPECT_EQ(optimizer.learning_rate(), 1.0);
  optimizer.set_learning_rate(0);
  EXPECT_EQ(optimizer.learning_rate(), 0.0);
}

class SchedulerPace : public testing::TestWithParam<std::tuple<ScheduleRule, int, int>> {};

// Accelerate's scheduler test, extended by short last windows of two epochs and by every rule.
TEST_P(SchedulerPace, ReachesZeroExactlyAfterTheLastStep) {
  const auto [rule, num_processes, accumulation] = GetParam();
  const TrainingLength length{.dataset_size = 29,
                              .batch_size = 2,
                              .num_processes = num_processes,
                              .gradient_accumulation_steps = accumulation,
                              .num_epochs = 2};
  const int batches = (29 + 2 * num_processes - 1) / (2 * num_processes);
  const std::int64_t total = total_steps(rule, length);

  const OneRank rank;
  Optimizer optimizer = rank.sgd();
  Scheduler scheduler(optimizer, linear_with_warmup(0, total), {.rule = rule, .num_processes = num_processes});
  double rate_of_last_step = 0;
  for (int epoch = 0; epoch < 2; ++epoch) {
    for (int batch = 1; batch <= batches; ++batch) {
      const bool ends_window = batch == batches || batch % accumulation == 0;
      auto scope = micro_batch(rank, ends_window);
      rank.backward();
      if (ends_window) rate_of_last_step = optimizer.learning_rate();
      optimizer.step();
      scheduler.step();
      optimizer.zero_grad();
    }
  }
  EXPECT_GT(rate_of_last_step, 0.0);
  EXPECT_EQ(scheduler.position(), total);
  EXPECT_EQ(optimizer.learning_rate(), 0.0);
}
INSTANTIATE_TEST_SUITE_P(Rules, SchedulerPace,
                         testing::Combine(testing::Values(ScheduleRule::optimizer_step, ScheduleRule::accelerate,
                                                          ScheduleRule::accelerate_micro_batch),
                                          testing::Values(1, 2, 3), testing::Values(1, 2, 4)));

TEST(Scheduler, KeepsTheRateWithinAWindow) {
  const OneRank rank;
  Optimizer optimizer = rank.sgd();
  Scheduler scheduler(optimizer, linear_with_warmup(0, 8), {.rule = ScheduleRule::accelerate_micro_batch});
  Rates rates;
  for (int batch = 1; batch <= 4; ++batch) {
    auto scope = micro_batch(rank, batch % 2 == 0);
    rank.backward();
    optimizer.step();
    scheduler.step();
    rates.push_back(optimizer.learning_rate());
    optimizer.zero_grad();
  }
  EXPECT_EQ(rates, (Rates{1, 0.75, 0.75, 0.5}));
}

TEST(Scheduler, DoesNotAdvanceAtASkippedStep) {
  for (const auto rule :
       {ScheduleRule::optimizer_step, ScheduleRule::accelerate, ScheduleRule::accelerate_micro_batch}) {
    const OneRank rank;
    const auto scaler = std::make_shared<GradScaler>();
    Optimizer optimizer = rank.sgd({1.0}, scaler);
    Scheduler scheduler(optimizer, linear_with_warmup(0, 4), {.rule = rule, .num_processes = 2});
    const auto step = [&](float gradient) {
      rank.backward(gradient);
      optimizer.step();
      scheduler.step();
      optimizer.zero_grad();
    };
    step(std::numeric_limits<float>::infinity());
    EXPECT_TRUE(optimizer.step_was_skipped());
    EXPECT_EQ(scheduler.position(), 0);
    EXPECT_EQ(optimizer.learning_rate(), 1.0);
    step(1.0F);
    EXPECT_FALSE(optimizer.step_was_skipped());
    EXPECT_GT(scheduler.position(), 0);
    EXPECT_LT(optimizer.learning_rate(), 1.0);
  }
}

TEST(Scheduler, MovesTheMomentum) {
  const OneRank rank;
  Optimizer sgd = rank.sgd();
  Scheduler with_sgd(sgd, one_cycle(11));
  const auto& options = static_cast<torch::optim::SGDOptions&>(sgd.inner().param_groups()[0].options());
  EXPECT_DOUBLE_EQ(options.momentum(), 0.95);
  EXPECT_NEAR(options.lr(), 1.0 / 25, 1e-15);
  for (int i = 0; i < 3; ++i) with_sgd.step();
  EXPECT_NEAR(options.momentum(), one_cycle(11).momentum(3), 1e-15);
  EXPECT_LT(options.momentum(), 0.9);

  const OneRank other;
  Optimizer adamw = other.with(std::make_shared<torch::optim::AdamW>(std::vector<at::Tensor>{other.weight}, 0.1));
  Scheduler with_adamw(adamw, one_cycle(10));
  const auto& betas = static_cast<torch::optim::AdamWOptions&>(adamw.inner().param_groups()[0].options()).betas();
  EXPECT_DOUBLE_EQ(std::get<0>(betas), 0.95);
  EXPECT_DOUBLE_EQ(std::get<1>(betas), 0.999);
}

TEST(Scheduler, RefusesAMomentumForAnOptimizerWithoutOneAndChangesNothing) {
  const OneRank rank;
  Optimizer optimizer = rank.with(std::make_shared<torch::optim::Adagrad>(std::vector<at::Tensor>{rank.weight}, 0.1));
  EXPECT_THROW(Scheduler(optimizer, one_cycle(10)), UsageError);
  EXPECT_EQ(optimizer.learning_rate(), 0.1);
  EXPECT_NO_THROW(Scheduler(optimizer, one_cycle(10, {.cycle_momentum = false})));
}

TEST(Scheduler, RefusesAMomentumForALaterGroupAndChangesNoGroup) {
  const OneRank rank;
  Optimizer optimizer = rank.sgd({1.0, 10.0});
  optimizer.param_groups()[1].set_options(std::make_unique<torch::optim::AdagradOptions>(0.1));
  EXPECT_THROW(Scheduler(optimizer, one_cycle(10)), UsageError);
  const auto& options = static_cast<torch::optim::SGDOptions&>(optimizer.param_groups()[0].options());
  EXPECT_EQ(options.momentum(), 0.5);
  EXPECT_EQ(options.lr(), 1.0);
}

TEST(Scheduler, RefusesACurveWithoutAFiniteValueAndChangesNothing) {
  const OneRank rank;
  Optimizer optimizer = rank.sgd();
  Scheduler scheduler(optimizer, [](std::int64_t position) { return 1.0 / static_cast<double>(1 - position); });
  EXPECT_THROW(scheduler.step(), UsageError);
  EXPECT_EQ(scheduler.position(), 0);
  EXPECT_EQ(optimizer.learning_rate(), 1.0);
}

TEST(SchedulerState, Resumes) {
  const OneRank rank;
  Optimizer optimizer = rank.sgd({2.0, 4.0});
  Scheduler scheduler(optimizer, cosine_with_warmup(2, 9));
  for (int i = 0; i < 5; ++i) scheduler.step();

  const OneRank other;
  Optimizer fresh = other.sgd({7.0, 7.0});  // the saved rates replace these
  Scheduler resumed(fresh, cosine_with_warmup(2, 9));
  resumed.load_state_dict(scheduler.state_dict());
  EXPECT_EQ(resumed.position(), 5);
  EXPECT_EQ(resumed.last_rates(), scheduler.last_rates());
  scheduler.step();
  resumed.step();
  EXPECT_EQ(resumed.last_rates(), scheduler.last_rates());
}

TEST(SchedulerState, WithinAWindowKeepsTheRateOfTheWindow) {
  const SchedulePace pace{.rule = ScheduleRule::accelerate_micro_batch};
  const OneRank rank;
  Optimizer optimizer = rank.sgd();
  Scheduler scheduler(optimizer, linear_with_warmup(0, 8), pace);
  {
    auto scope = micro_batch(rank, false);
    rank.backward();
    scheduler.step();
  }
  const OneRank other;
  Optimizer fresh = other.sgd();
  Scheduler resumed(fresh, linear_with_warmup(0, 8), pace);
  resumed.load_state_dict(scheduler.state_dict());
  EXPECT_EQ(resumed.position(), 1);
  EXPECT_EQ(fresh.learning_rate(), 1.0);
}

TEST(SchedulerState, FitsAnOptimizerToWhichTheSavedGroupsWereAdded) {
  const auto add_group = [](Optimizer& optimizer) {
    optimizer.inner().add_param_group(
        {std::vector<at::Tensor>{at::zeros({1})}, std::make_unique<torch::optim::SGDOptions>(10.0)});
  };
  const OneRank rank;
  Optimizer optimizer = rank.sgd();
  Scheduler scheduler(optimizer, linear_with_warmup(0, 4));
  add_group(optimizer);
  scheduler.step();
  const OneRank restarted;
  Optimizer fresh = restarted.sgd();
  Scheduler resumed(fresh, linear_with_warmup(0, 4));
  EXPECT_THROW(resumed.load_state_dict(scheduler.state_dict()), CheckpointError);
  add_group(fresh);
  resumed.load_state_dict(scheduler.state_dict());
  EXPECT_EQ(resumed.last_rates(), (Rates{0.75, 7.5}));
}

TEST(SchedulerState, AStateThatDoesNotFitIsRefusedAndChangesNothing) {
  const OneRank rank;
  Optimizer optimizer = rank.sgd({2.0});
  Scheduler scheduler(optimizer, linear_with_warmup(0, 8));
  scheduler.step();
  const OneRank other;
  Optimizer two_groups = other.sgd({1.0, 1.0});
  StateDict damaged = scheduler.state_dict();
  damaged.set("position", std::int64_t{-1});
  for (const StateDict& state : {Scheduler(two_groups, constant()).state_dict(), damaged, StateDict()}) {
    EXPECT_THROW(scheduler.load_state_dict(state), CheckpointError);
    EXPECT_EQ(scheduler.position(), 1);
    EXPECT_EQ(optimizer.learning_rate(), 1.75);
  }
}

}  // namespace
}  // namespace tutti::scheduler_test
