// One rank, no I/O.
#include "tutti/amp/grad_scaler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tutti/amp/precision.h"
#include "tutti/core/error.h"

namespace tutti::grad_scaler_test {
namespace {

TEST(GradScaler, HasPyTorchsDefaults) {
  const StateDict state = GradScaler().state_dict();
  EXPECT_EQ(state.get<double>("scale"), 65536.0);
  EXPECT_EQ(state.get<double>("growth_factor"), 2.0);
  EXPECT_EQ(state.get<double>("backoff_factor"), 0.5);
  EXPECT_EQ(state.get<std::int64_t>("growth_interval"), 2000);
  EXPECT_EQ(state.get<std::int64_t>("_growth_tracker"), 0);
}

TEST(GradScaler, GrowsAfterAnIntervalWithoutOverflowAndShrinksAtOnce) {
  GradScaler scaler({.init_scale = 8, .growth_interval = 3});
  scaler.update(false);
  scaler.update(false);
  EXPECT_EQ(scaler.scale(), 8);
  scaler.update(false);
  EXPECT_EQ(scaler.scale(), 16);
  scaler.update(false);
  scaler.update(false);
  scaler.update(true);
  EXPECT_EQ(scaler.scale(), 8);
  // The overflow restarted the interval.
  scaler.update(false);
  scaler.update(false);
  EXPECT_EQ(scaler.scale(), 8);
  scaler.update(false);
  EXPECT_EQ(scaler.scale(), 16);
}

TEST(GradScaler, NeverGrowsBeyondFloat) {
  GradScaler scaler({.init_scale = 3e38, .growth_interval = 1});
  scaler.update(false);
  EXPECT_EQ(scaler.scale(), 3e38);
}

TEST(GradScaler, NeverShrinksBelowFloat) {
  GradScaler scaler;
  for (int step = 0; step < 3000; ++step) scaler.update(true);
  const auto scale = static_cast<float>(scaler.scale());
  EXPECT_GT(scale, 0);
  EXPECT_TRUE(std::isfinite(1 / scale));
  EXPECT_NO_THROW(GradScaler().load_state_dict(scaler.state_dict()));
}

TEST(GradScaler, ResumesFromItsState) {
  GradScaler before({.init_scale = 8, .growth_interval = 3});
  before.update(false);
  before.update(false);
  GradScaler after;
  after.load_state_dict(before.state_dict());
  after.update(false);
  EXPECT_EQ(after.scale(), 16);
}

TEST(GradScaler, RefusesOptionsAndStatesOutOfRange) {
  EXPECT_THROW(GradScaler({.init_scale = 0}), UsageError);
  EXPECT_THROW(GradScaler({.init_scale = std::numeric_limits<double>::infinity()}), UsageError);
  EXPECT_THROW(GradScaler({.init_scale = 1e-40}), UsageError);
  EXPECT_THROW(GradScaler({.growth_factor = 1}), UsageError);
  EXPECT_THROW(GradScaler({.backoff_factor = 1}), UsageError);
  EXPECT_THROW(GradScaler({.growth_interval = 0}), UsageError);
  GradScaler scaler;
  StateDict state = scaler.state_dict();
  state.set("scale", -1.0);
  EXPECT_THROW(scaler.load_state_dict(state), CheckpointError);
  state.set("scale", 4.0);
  state.set("_growth_tracker", std::int64_t{2000});
  EXPECT_THROW(scaler.load_state_dict(state), CheckpointError);
  EXPECT_EQ(scaler.scale(), 65536.0);
}

TEST(Precision, IsNamedAsInAccelerate) {
  for (const Precision precision : {Precision::no, Precision::fp16, Precision::bf16}) {
    EXPECT_EQ(parse_precision(to_string(precision)), precision);
  }
  EXPECT_EQ(parse_precision("fp8"), std::nullopt);
}

}  // namespace
}  // namespace tutti::grad_scaler_test
