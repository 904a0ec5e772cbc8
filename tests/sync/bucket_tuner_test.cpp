// Which plan is kept, from invented measurements. No ranks.
#include "sync/bucket_tuner.h"

#include <gtest/gtest.h>

#include <numeric>

namespace tutti::sync::bucket_tuner_test {
namespace {

using Order = std::vector<int>;

const std::vector<GradientSize> eight(8, {.bytes = 64});

BucketOptions caps(std::int64_t bytes) {
  return {.first_bucket_bytes = bytes, .bucket_bytes = bytes};
}

Order flat(const BucketPlan& plan) {
  Order order;
  for (const Bucket& bucket : plan.buckets) {
    order.insert(order.end(), bucket.parameters.begin(), bucket.parameters.end());
  }
  return order;
}

/// Feeds `tuner` rounds that take `seconds_of` the number of buckets, until it is done; returns the number that stays.
std::size_t buckets_kept(BucketTuner& tuner, std::size_t buckets, const Order& order,
                         const std::function<double(std::size_t)>& seconds_of) {
  std::optional<double> last;
  for (int round = 0; round < 100 && !tuner.done(); ++round) {
    const double seconds = seconds_of(buckets);
    if (const auto plan = tuner.learn(last, order)) buckets = plan->buckets.size();
    last = seconds;
  }
  EXPECT_TRUE(tuner.done());
  return buckets;
}

TEST(BucketTuner, TakesTheOrderOfTheFirstRound) {
  BucketTuner tuner(eight, caps(128));
  const auto plan = tuner.learn(1.0, Order{0, 2, 4, 6, 2, -1, -1, -1});
  ASSERT_TRUE(plan);
  EXPECT_EQ(flat(*plan), (Order{0, 2, 4, 6, 7, 5, 3, 1}));  // what did not come: as registered
  EXPECT_EQ(plan->group_bytes, plan_buckets(eight, caps(128)).group_bytes);
}

TEST(BucketTuner, KeepsTheFastestCap) {
  Order order(8);
  std::iota(order.begin(), order.end(), 0);
  const auto few_are_fast = [](std::size_t buckets) { return static_cast<double>(buckets); };
  const auto many_are_fast = [](std::size_t buckets) { return 10.0 - static_cast<double>(buckets); };
  BucketTuner few(eight, caps(128)), many(eight, caps(128));
  EXPECT_EQ(buckets_kept(few, 4, order, few_are_fast), 2U);  // the first one keeps its own cap
  EXPECT_EQ(buckets_kept(many, 4, order, many_are_fast), 8U);
}

TEST(BucketTuner, LeavesTheCapForASmallGainAlone) {
  BucketTuner tuner(eight, caps(128));
  EXPECT_EQ(buckets_kept(tuner, 4, Order{7}, [](std::size_t buckets) { return buckets == 4 ? 1.0 : 0.99; }), 4U);
}

TEST(BucketTuner, JudgesACandidateByItsFastestRound) {
  BucketTuner tuner(eight, caps(128));
  // Of each plan's rounds all but one are disturbed; two buckets are the fastest without.
  std::size_t last_buckets = 0;
  int same_plan = 0;
  const auto seconds_of = [&](std::size_t buckets) {
    same_plan = buckets == last_buckets ? same_plan + 1 : 1;
    last_buckets = buckets;
    if (same_plan % 3 != 2) return buckets == 2 ? 8.0 : 7.0;
    return buckets == 2 ? 0.5 : 1.0;
  };
  EXPECT_EQ(buckets_kept(tuner, 4, Order{7}, seconds_of), 2U);
}

TEST(BucketTuner, IsDoneWhereThereIsNothingToChoose) {
  EXPECT_TRUE(BucketTuner(eight, {}).done());  // all in one bucket
  EXPECT_TRUE(BucketTuner({}, {}).done());
  BucketOptions given = caps(128);
  given.measured = false;
  EXPECT_TRUE(BucketTuner(eight, given).done());
}

TEST(BucketTuner, LosesPatience) {
  BucketTuner tuner(eight, caps(128));
  for (int round = 1; round < BucketTuner::patience; ++round) EXPECT_FALSE(tuner.learn(std::nullopt, Order{0}));
  EXPECT_FALSE(tuner.done());
  EXPECT_FALSE(tuner.learn(std::nullopt, Order{0}));
  EXPECT_TRUE(tuner.done());
  // A round in which rank 0 had no gradient tells no order.
  BucketTuner unordered(eight, caps(128));
  EXPECT_FALSE(unordered.learn(1.0, Order(8, -1)));
  EXPECT_TRUE(unordered.learn(1.0, Order{0}));
}

}  // namespace
}  // namespace tutti::sync::bucket_tuner_test
