// Every curve at the points that PyTorch and Hugging Face printed (reference_curves.py).
#include "tutti/optim/schedules.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <string>

#include "optim/reference_curves.h"
#include "tutti/core/error.h"

namespace tutti::schedules_test {
namespace {

std::map<std::string, LrSchedule> schedules_under_test() {
  constexpr auto linear = RampType::linear;
  constexpr auto cosine = RampType::cosine;
  constexpr auto sqrt = RampType::one_minus_sqrt;
  return {
      {"linear", linear_with_warmup(10, 100)},
      {"linear_without_warmup", linear_with_warmup(0, 7)},
      {"cosine", cosine_with_warmup(10, 100)},
      {"cosine_two_waves", cosine_with_warmup(10, 100, 2)},
      {"cosine_with_restarts", cosine_with_hard_restarts(10, 100, 3)},
      {"cosine_with_one_restart", cosine_with_hard_restarts(10, 100)},
      {"cosine_with_min_lr", cosine_with_min_lr(10, 100, 0.1)},
      {"cosine_warmup_with_min_lr", cosine_warmup_with_min_lr(10, 100, 0.1)},
      {"cosine_warmup_with_min_lr_from", cosine_warmup_with_min_lr(10, 100, 0.1, 0.5, 0.05)},
      {"polynomial", polynomial(10, 100)},
      {"polynomial_cubic", polynomial(10, 100, 1e-5, 3.0, 1e-3)},
      {"constant", constant()},
      {"constant_with_warmup", constant_with_warmup(10)},
      {"inverse_sqrt", inverse_sqrt(10)},
      {"inverse_sqrt_without_warmup", inverse_sqrt(0)},
      {"inverse_sqrt_timescale", inverse_sqrt(10, 50)},
      {"warmup_stable_decay", warmup_stable_decay(10, 40, {.total_steps = 100})},
      {"warmup_stable_decay_linear",
       warmup_stable_decay(10, 40,
                           {.stable_steps = 20, .warmup_type = cosine, .decay_type = linear, .min_lr_ratio = 0.1})},
      {"warmup_stable_decay_sqrt",
       warmup_stable_decay(10, 60, {.total_steps = 100, .warmup_type = sqrt, .decay_type = sqrt, .min_lr_ratio = 0.2})},
      {"warmup_stable_decay_waves",
       warmup_stable_decay(10, 60, {.total_steps = 100, .min_lr_ratio = 0.2, .num_cycles = 1.5})},
      {"step", step(30, 0.5)},
      {"step_by_default", step(4)},
      {"multi_step", multi_step({55, 11, 99, 55}, 0.5)},
      {"exponential", exponential(0.97)},
      {"one_cycle", one_cycle(50)},
      {"one_cycle_linear", one_cycle(50, {.pct_start = 0.25,
                                          .anneal_strategy = AnnealStrategy::linear,
                                          .base_momentum = 0.8,
                                          .max_momentum = 0.9,
                                          .div_factor = 10,
                                          .final_div_factor = 100})},
      {"one_cycle_three_phase", one_cycle(50, {.three_phase = true})},
      {"one_cycle_falling_only", one_cycle(50, {.pct_start = 0, .cycle_momentum = false})},
  };
}

TEST(Schedules, EqualThoseOfPyTorchAndHuggingFace) {
  const auto schedules = schedules_under_test();
  for (const auto& [name, curve] : test::reference_curves) {
    SCOPED_TRACE(name);
    const LrSchedule& schedule = schedules.at(name);
    for (const auto& [position, factor, momentum] : curve) {
      EXPECT_NEAR(schedule.factor(position), factor, 1e-12) << "at " << position;
      EXPECT_EQ(schedule.has_momentum(), momentum != 0);
      if (schedule.has_momentum()) {
        EXPECT_NEAR(schedule.momentum(position), momentum, 1e-12) << "at " << position;
      }
    }
  }
  EXPECT_EQ(schedules.size(), test::reference_curves.size());
}

TEST(Schedules, EndAtExactlyZero) {
  for (const auto& schedule :
       {linear_with_warmup(3, 17), cosine_with_warmup(3, 17), cosine_with_hard_restarts(3, 17, 2),
        polynomial(3, 17, 0.0), warmup_stable_decay(3, 5, {.total_steps = 17}), linear_with_warmup(17, 17),
        cosine_with_warmup(17, 17), polynomial(17, 17, 0.0)}) {
    EXPECT_EQ(schedule.factor(17), 0.0);
    EXPECT_GT(schedule.factor(16), 0.0);
  }
}

TEST(Schedules, KeepTheirLastValuePastTheEnd) {
  EXPECT_EQ(cosine_with_warmup(10, 100).factor(1000), 0.0);
  EXPECT_EQ(cosine_with_warmup(10, 100, 1.0).factor(130), 1.0);
  EXPECT_DOUBLE_EQ(cosine_with_min_lr(10, 100, 0.25).factor(130), 0.25);
  EXPECT_DOUBLE_EQ(cosine_warmup_with_min_lr(10, 100, 0.25).factor(100), 0.25);
  EXPECT_DOUBLE_EQ(polynomial(0, 10, 0.5).factor(11), 0.5);
  const auto cycle = one_cycle(50);
  EXPECT_EQ(cycle.factor(50), cycle.factor(49));
  EXPECT_EQ(cycle.momentum(50), 0.95);
}

TEST(Schedules, WithoutWarmupStartAtFullRate) {
  for (const auto& schedule : {linear_with_warmup(0, 10), cosine_with_warmup(0, 10), polynomial(0, 10), inverse_sqrt(0),
                               constant_with_warmup(0), warmup_stable_decay(0, 0, {.stable_steps = 1})}) {
    EXPECT_EQ(schedule.factor(0), 1.0);
  }
}

TEST(Schedules, MayBeAnyCallable) {
  const LrSchedule schedule = [](std::int64_t position) { return std::pow(0.5, static_cast<double>(position)); };
  EXPECT_EQ(schedule.factor(3), 0.125);
  EXPECT_FALSE(schedule.has_momentum());
}

TEST(OneCycle, SupportsRunsOfOneStepAndEmptyPhases) {
  EXPECT_NEAR(one_cycle(1).factor(0), 1.0 / 25 / 1e4, 1e-12);
  EXPECT_DOUBLE_EQ(one_cycle(10, {.pct_start = 0.1}).factor(0), 1.0);  // PyTorch divides by zero here
}

TEST(Schedules, RefuseArgumentsOutOfRange) {
  constexpr double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THROW(linear_with_warmup(-1, 10), UsageError);
  EXPECT_THROW(linear_with_warmup(11, 10), UsageError);
  EXPECT_THROW(linear_with_warmup(0, 0), UsageError);
  EXPECT_THROW(cosine_with_warmup(11, 10), UsageError);
  EXPECT_THROW(cosine_with_warmup(0, 10, 0), UsageError);
  EXPECT_THROW(cosine_with_warmup(0, 10, nan), UsageError);
  EXPECT_THROW(cosine_with_hard_restarts(0, 10, 0), UsageError);
  EXPECT_THROW(cosine_with_min_lr(0, 10, 1.5), UsageError);
  EXPECT_THROW(cosine_with_min_lr(0, 10, nan), UsageError);
  EXPECT_THROW(cosine_warmup_with_min_lr(0, 10, 0.1, 0.5, -0.1), UsageError);
  EXPECT_THROW(polynomial(0, 10, 1.0), UsageError);
  EXPECT_THROW(polynomial(0, 10, -1e-3), UsageError);
  EXPECT_THROW(polynomial(0, 10, 1e-7, 0), UsageError);
  EXPECT_THROW(constant_with_warmup(-1), UsageError);
  EXPECT_THROW(inverse_sqrt(-1), UsageError);
  EXPECT_THROW(inverse_sqrt(10, 0), UsageError);
  EXPECT_THROW(warmup_stable_decay(10, 10, {}), UsageError);
  EXPECT_THROW(warmup_stable_decay(10, 10, {.total_steps = 19}), UsageError);
  EXPECT_THROW(warmup_stable_decay(10, 10, {.total_steps = 30, .stable_steps = 9}), UsageError);
  EXPECT_NO_THROW(warmup_stable_decay(10, 10, {.total_steps = 30, .stable_steps = 10}));
  EXPECT_THROW(warmup_stable_decay(10, 10, {.stable_steps = -1}), UsageError);
  EXPECT_THROW(warmup_stable_decay(10, -1, {.stable_steps = 1}), UsageError);
  EXPECT_THROW(warmup_stable_decay(10, 10, {.stable_steps = 1, .min_lr_ratio = 2}), UsageError);
  EXPECT_THROW(step(0), UsageError);
  EXPECT_THROW(step(1, 0), UsageError);
  EXPECT_THROW(multi_step({-1}), UsageError);
  EXPECT_THROW(exponential(-0.5), UsageError);
  EXPECT_THROW(one_cycle(0), UsageError);
  EXPECT_THROW(one_cycle(10, {.pct_start = 1.5}), UsageError);
  EXPECT_THROW(one_cycle(10, {.pct_start = 0.6, .three_phase = true}), UsageError);
  EXPECT_THROW(one_cycle(10, {.base_momentum = 1.0}), UsageError);
  EXPECT_THROW(one_cycle(10, {.div_factor = 0}), UsageError);
}

}  // namespace
}  // namespace tutti::schedules_test
