#include "tutti/optim/lr_schedule.h"

#include <gtest/gtest.h>

#include "tutti/core/error.h"

namespace tutti {
namespace {

// Values of Hugging Face's get_cosine_schedule_with_warmup(optimizer, 10, 100).
TEST(CosineWithWarmup, FollowsTheCurve) {
  const LrSchedule schedule = cosine_with_warmup(10, 100);
  EXPECT_DOUBLE_EQ(schedule(0), 0.0);
  EXPECT_DOUBLE_EQ(schedule(5), 0.5);
  EXPECT_DOUBLE_EQ(schedule(10), 1.0);
  EXPECT_NEAR(schedule(55), 0.5, 1e-12);
  EXPECT_NEAR(schedule(40), 0.75, 1e-12);
  EXPECT_NEAR(schedule(100), 0.0, 1e-12);
  EXPECT_NEAR(schedule(1000), 0.0, 1e-12);
}

TEST(CosineWithWarmup, WithoutWarmupStartsAtFullRate) {
  EXPECT_DOUBLE_EQ(cosine_with_warmup(0, 10)(0), 1.0);
}

TEST(CosineWithWarmup, RefusesImpossibleLengths) {
  EXPECT_THROW(cosine_with_warmup(-1, 10), UsageError);
  EXPECT_THROW(cosine_with_warmup(11, 10), UsageError);
  EXPECT_THROW(cosine_with_warmup(0, 0), UsageError);
}

}  // namespace
}  // namespace tutti
