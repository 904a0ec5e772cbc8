#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "optim/reference_curves.h"
#include "tutti/core/error.h"
#include "tutti/optim/schedules.h"

namespace tutti::schedule_by_name_test {
namespace {

std::string refusal(std::string_view name, const ScheduleOptions& options) {
  try {
    schedule_by_name(name, options);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "made";
}

/// Compares `schedule` with all points of the reference curve `reference`.
void expect_curve(const LrSchedule& schedule, const std::string& reference) {
  for (const auto& point : test::reference_curves.at(reference)) {
    EXPECT_NEAR(schedule.factor(point.position), point.factor, 1e-12) << reference << " at " << point.position;
  }
}

TEST(ScheduleByName, CreatesEachScheduleWithItsArguments) {
  const auto make = [](std::string_view name, ScheduleOptions options) {
    options.warmup_steps = 10;
    options.total_steps = 100;
    return schedule_by_name(name, options);
  };
  expect_curve(make("linear", {}), "linear");
  expect_curve(make("cosine", {}), "cosine");
  expect_curve(make("cosine", {.num_cycles = 2}), "cosine_two_waves");
  expect_curve(make("cosine_with_restarts", {}), "cosine_with_one_restart");
  expect_curve(make("cosine_with_restarts", {.num_cycles = 3}), "cosine_with_restarts");
  expect_curve(make("cosine_with_min_lr", {.min_lr_rate = 0.1}), "cosine_with_min_lr");
  expect_curve(make("cosine_warmup_with_min_lr", {.min_lr_rate = 0.1}), "cosine_warmup_with_min_lr");
  expect_curve(make("cosine_warmup_with_min_lr", {.min_lr_rate = 0.1, .warmup_lr_rate = 0.05}),
               "cosine_warmup_with_min_lr_from");
  expect_curve(make("polynomial", {}), "polynomial");
  expect_curve(make("polynomial", {.lr_end = 1e-5, .lr_init = 1e-3, .power = 3}), "polynomial_cubic");
  expect_curve(make("constant", {}), "constant");
  expect_curve(make("constant_with_warmup", {}), "constant_with_warmup");
  expect_curve(make("inverse_sqrt", {}), "inverse_sqrt");
  expect_curve(make("inverse_sqrt", {.timescale = 50}), "inverse_sqrt_timescale");
  expect_curve(make("warmup_stable_decay", {.decay_steps = 40}), "warmup_stable_decay");
  expect_curve(make("warmup_stable_decay", {.num_cycles = 1.5, .decay_steps = 60, .min_lr_ratio = 0.2}),
               "warmup_stable_decay_waves");
  expect_curve(make("warmup_stable_decay", {.decay_steps = 60,
                                            .warmup_type = RampType::one_minus_sqrt,
                                            .decay_type = RampType::one_minus_sqrt,
                                            .min_lr_ratio = 0.2}),
               "warmup_stable_decay_sqrt");
  expect_curve(schedule_by_name("warmup_stable_decay", {.warmup_steps = 10,
                                                        .stable_steps = 20,
                                                        .decay_steps = 40,
                                                        .warmup_type = RampType::cosine,
                                                        .decay_type = RampType::linear,
                                                        .min_lr_ratio = 0.1}),
               "warmup_stable_decay_linear");
}

// "greedy" and "reduce_lr_on_plateau" follow a metric, so they are not curves.
TEST(ScheduleByName, KnowsEveryCurveOfHuggingFace) {
  const std::string known = refusal("triangular", {});
  EXPECT_NE(known.find("'triangular'"), std::string::npos);
  for (const std::string& type : test::scheduler_types) {
    if (type == "greedy" || type == "reduce_lr_on_plateau") continue;
    EXPECT_NE((known + ",").find(" " + type + ","), std::string::npos) << type << " in: " << known;
    EXPECT_EQ(refusal(type, {.total_steps = 10}).find("unknown learning rate schedule"), std::string::npos);
  }
  EXPECT_NE(refusal("reduce_lr_on_plateau", {}).find("tutti::ReduceLROnPlateau"), std::string::npos);
}

TEST(ScheduleByName, NamesAMissingArgument) {
  EXPECT_NE(refusal("linear", {}).find("total_steps"), std::string::npos);
  EXPECT_NE(refusal("cosine_with_min_lr", {.total_steps = 10}).find("min_lr_rate"), std::string::npos);
  EXPECT_NE(refusal("warmup_stable_decay", {.total_steps = 10}).find("decay_steps"), std::string::npos);
}

TEST(ScheduleByName, RefusesArgumentsOfOtherSchedules) {
  EXPECT_NE(refusal("linear", {.total_steps = 10, .num_cycles = 1}).find("num_cycles"), std::string::npos);
  EXPECT_NE(refusal("cosine", {.total_steps = 10, .min_lr_rate = 0.1}).find("min_lr_rate"), std::string::npos);
  EXPECT_NE(refusal("constant", {.timescale = 1}).find("timescale"), std::string::npos);
  EXPECT_NE(refusal("cosine_with_restarts", {.total_steps = 10, .num_cycles = 1.5}).find("whole"), std::string::npos);
}

}  // namespace
}  // namespace tutti::schedule_by_name_test
