#include "sync/bucket_plan.h"

#include <gtest/gtest.h>

#include <random>

#include "tutti/core/error.h"

namespace tutti::bucket_plan_test {
namespace {

TEST(BucketPlan, FillsFromTheLastParameterAndClosesBeforeTheCap) {
  const std::vector<GradientSize> sizes = {{.bytes = 100}, {.bytes = 200}, {.bytes = 300}};
  const BucketPlan plan = plan_buckets(sizes, {.first_bucket_bytes = 400, .bucket_bytes = 400});
  ASSERT_EQ(plan.buckets.size(), 2U);
  EXPECT_EQ(plan.buckets[0].parameters, (std::vector<int>{2}));
  EXPECT_EQ(plan.buckets[1].parameters, (std::vector<int>{1, 0}));
  EXPECT_EQ(plan.slots[0].bucket, 1);
  EXPECT_EQ(plan.slots[2].bucket, 0);
}

TEST(BucketPlan, FirstBucketHasItsOwnCap) {
  const std::vector<GradientSize> sizes(8, {.bytes = 64});
  const BucketPlan plan = plan_buckets(sizes, {.first_bucket_bytes = 64, .bucket_bytes = 1024});
  ASSERT_EQ(plan.buckets.size(), 2U);
  EXPECT_EQ(plan.buckets[0].parameters.size(), 1U);
  EXPECT_EQ(plan.buckets[1].parameters.size(), 7U);
}

TEST(BucketPlan, GradientAboveTheCapHasABucketOfItsOwn) {
  const std::vector<GradientSize> sizes = {{.bytes = 8}, {.bytes = 4096}, {.bytes = 8}};
  const BucketPlan plan = plan_buckets(sizes, {.first_bucket_bytes = 128, .bucket_bytes = 128});
  ASSERT_EQ(plan.buckets.size(), 3U);
  EXPECT_EQ(plan.buckets[1].parameters, (std::vector<int>{1}));
}

TEST(BucketPlan, GroupsNeverShareABucket) {
  const std::vector<GradientSize> sizes = {
      {.bytes = 8, .group = 0}, {.bytes = 8, .group = 1}, {.bytes = 8, .group = 0}};
  const BucketPlan plan = plan_buckets(sizes);
  ASSERT_EQ(plan.buckets.size(), 2U);
  EXPECT_EQ(plan.buckets[0].parameters, (std::vector<int>{2, 0}));
  EXPECT_EQ(plan.buckets[1].parameters, (std::vector<int>{1}));
  EXPECT_EQ(plan.group_bytes, (std::vector<std::int64_t>{128, 64}));
}

TEST(BucketPlan, TakesTheOrderThatItIsGiven) {
  const std::vector<GradientSize> eight(8, {.bytes = 64});
  const BucketOptions caps{.first_bucket_bytes = 128, .bucket_bytes = 128};
  // Parameters without a gradient follow in reverse order of registration. A repeated parameter keeps its first place.
  const std::vector<int> order = {0, 2, 4, 6, 2, -1, -1, -1};
  const BucketPlan plan = plan_buckets(eight, caps, order);
  std::vector<int> flat;
  for (const Bucket& bucket : plan.buckets) {
    flat.insert(flat.end(), bucket.parameters.begin(), bucket.parameters.end());
  }
  EXPECT_EQ(flat, (std::vector<int>{0, 2, 4, 6, 7, 5, 3, 1}));
  EXPECT_EQ(plan.group_bytes, plan_buckets(eight, caps).group_bytes);
}

TEST(BucketPlan, RefusesCapsBelowOne) {
  EXPECT_THROW(plan_buckets({}, {.first_bucket_bytes = 0}), UsageError);
  EXPECT_THROW(plan_buckets({}, {.bucket_bytes = -1}), UsageError);
}

// For any sizes, a plan contains each parameter once, slots are aligned and do not overlap, and buckets are contiguous
// in reverse order of registration.
TEST(BucketPlan, HoldsItsPromisesOnRandomSizes) {
  for (std::uint32_t seed = 0; seed < 500; ++seed) {
    std::mt19937 random(seed);
    std::vector<GradientSize> sizes(random() % 40);
    for (GradientSize& size : sizes) {
      size = {.bytes = static_cast<std::int64_t>(random() % 3000), .group = static_cast<int>(random() % 3)};
    }
    const BucketPlan plan = plan_buckets(sizes, {.first_bucket_bytes = 1 + static_cast<std::int64_t>(random() % 1000),
                                                 .bucket_bytes = 1 + static_cast<std::int64_t>(random() % 4000)});
    std::vector<std::int64_t> group_end(plan.group_bytes.size(), 0);
    std::vector<int> seen(sizes.size(), 0);
    for (std::size_t index = 0; index < plan.buckets.size(); ++index) {
      const Bucket& bucket = plan.buckets[index];
      ASSERT_EQ(bucket.begin, group_end[bucket.group]) << "seed " << seed;
      std::int64_t end = bucket.begin;
      for (const int parameter : bucket.parameters) {
        ++seen[parameter];
        ASSERT_EQ(sizes[parameter].group, bucket.group) << "seed " << seed;
        ASSERT_EQ(plan.slots[parameter].bucket, static_cast<int>(index)) << "seed " << seed;
        ASSERT_EQ(plan.slots[parameter].offset % slot_alignment, 0) << "seed " << seed;
        ASSERT_GE(plan.slots[parameter].offset, end) << "seed " << seed;
        end = plan.slots[parameter].offset + sizes[parameter].bytes;
      }
      ASSERT_LE(end, bucket.end) << "seed " << seed;
      group_end[bucket.group] = bucket.end;
    }
    ASSERT_EQ(seen, std::vector<int>(sizes.size(), 1)) << "seed " << seed;
    ASSERT_EQ(group_end, plan.group_bytes) << "seed " << seed;
  }
}

}  // namespace
}  // namespace tutti::bucket_plan_test
