#include "sync/sync_header.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>

namespace tutti::sync::sync_header_test {
namespace {

using Headers = std::vector<SyncHeader>;
using Trailers = std::vector<SyncTrailer>;

SyncHeader plain_pass() {
  return {.has_gradients = 1, .weighting = Weighting::plain};
}
SyncHeader weighted_pass(double weight) {
  return {.has_gradients = 1, .weighting = Weighting::weighted, .weight = weight};
}

TEST(SyncHeaders, PlainWindowsDivideByTheNumberOfRanks) {
  const SyncPlan plan = make_sync_plan(Headers{plain_pass(), plain_pass(), {}, plain_pass()});
  EXPECT_FALSE(plan.mismatch);
  EXPECT_FALSE(plan.empty);
  EXPECT_DOUBLE_EQ(plan.scale, 0.25);
}

TEST(SyncHeaders, WeightedWindowsDivideByAllWeights) {
  const SyncPlan plan = make_sync_plan(Headers{weighted_pass(3), weighted_pass(0), {}});
  EXPECT_FALSE(plan.mismatch);
  EXPECT_DOUBLE_EQ(plan.total_weight, 3);
  EXPECT_DOUBLE_EQ(plan.scale, 1.0 / 3);
}

TEST(SyncHeaders, ATotalWeightOfZeroIsNoMean) {
  EXPECT_TRUE(make_sync_plan(Headers{weighted_pass(0), weighted_pass(0)}).mismatch);
}

TEST(SyncHeaders, NoRankRanAPass) {
  const SyncPlan plan = make_sync_plan(Headers{{}, {}});
  EXPECT_TRUE(plan.empty);
  EXPECT_FALSE(plan.mismatch);
}

TEST(SyncHeaders, NamesTheRankThatIsAtAnotherStep) {
  Headers headers{plain_pass(), plain_pass(), plain_pass()};
  headers[2].step = 5;
  const SyncPlan plan = make_sync_plan(headers);
  ASSERT_TRUE(plan.mismatch);
  EXPECT_NE(plan.mismatch->find("rank 2 at step 5"), std::string::npos) << *plan.mismatch;
}

TEST(SyncHeaders, NamesRanksThatMixAccumulateWithPlainPasses) {
  const SyncPlan plan = make_sync_plan(Headers{{}, weighted_pass(1), plain_pass()});
  ASSERT_TRUE(plan.mismatch);
  EXPECT_NE(plan.mismatch->find("rank 2 ran its backward passes outside"), std::string::npos) << *plan.mismatch;
  EXPECT_NE(plan.mismatch->find("rank 1 inside"), std::string::npos) << *plan.mismatch;
}

TEST(SyncHeaders, SeesParametersThatDrifted) {
  Headers headers{plain_pass(), plain_pass()};
  EXPECT_FALSE(make_sync_plan(headers).parameters_differ);
  headers[1].parameters = 7;
  EXPECT_TRUE(make_sync_plan(headers).parameters_differ);
}

TEST(SyncHeaders, SeesWhatElseDiffers) {
  Headers headers{plain_pass(), plain_pass()};
  EXPECT_FALSE(make_sync_plan(headers).compared_only_differ);
  EXPECT_FALSE(make_sync_plan(headers).step_options_differ);
  headers[1].compared_only = 7;
  EXPECT_TRUE(make_sync_plan(headers).compared_only_differ);
  headers[0].step_options = 7;
  EXPECT_TRUE(make_sync_plan(headers).step_options_differ);
  // One rank is in backward, the other in step(): the program may have changed both in between.
  headers[1].in_pass = 1;
  EXPECT_FALSE(make_sync_plan(headers).compared_only_differ);
  EXPECT_FALSE(make_sync_plan(headers).step_options_differ);
}

TEST(SyncHeaders, AgreeOnTheNewestSampleThatAllDevicesHaveDelivered) {
  Headers headers{plain_pass(), plain_pass(), plain_pass()};
  EXPECT_EQ(make_sync_plan(headers).samples_arrived, std::numeric_limits<std::int64_t>::max());
  headers[0].samples_arrived = 7;
  headers[1].samples_arrived = 5;
  headers[2].samples_arrived = 6;
  EXPECT_EQ(make_sync_plan(headers).samples_arrived, 5);
  EXPECT_TRUE(make_sync_plan(headers).same_place);
  headers[1].in_pass = 1;
  EXPECT_FALSE(make_sync_plan(headers).same_place);
}

TEST(SyncHeaders, NameTheBatchesOfRanksThatDiffer) {
  const auto at = [](const BatchPosition& position) {
    SyncHeader header = plain_pass();
    header.batch = position;
    return header;
  };
  const SyncPlan equal = make_sync_plan(Headers{at({0, 1, 4}), at({0, 1, 4})});
  EXPECT_FALSE(equal.mismatch);
  EXPECT_FALSE(equal.batches_may_differ);
  const SyncPlan differ = make_sync_plan(Headers{at({2, 1, 4}), at({2, 1, 4}), at({2, 1, 5})});
  ASSERT_TRUE(differ.mismatch);
  EXPECT_NE(differ.mismatch->find("rank 0 is at batch 4 of epoch 1 of data loader 2, rank 2 at batch 5 of epoch 1"),
            std::string::npos)
      << *differ.mismatch;
  EXPECT_TRUE(make_sync_plan(Headers{at({0, 1, 4}), at({0, 2, 4})}).mismatch);
  const SyncPlan shuffled_never = make_sync_plan(Headers{at({0, -1, 4}), at({0, -1, 3})});
  ASSERT_TRUE(shuffled_never.mismatch);
  EXPECT_NE(shuffled_never.mismatch->find("rank 1 at batch 3 ("), std::string::npos) << *shuffled_never.mismatch;
}

TEST(SyncHeaders, DoNotCompareBatchesThatMayDiffer) {
  const auto at = [](const BatchPosition& position) {
    SyncHeader header = plain_pass();
    header.batch = position;
    return header;
  };
  // Ranks choose between loaders, are outside of loops, or say so.
  for (const BatchPosition& position : {BatchPosition{1, 0, 3}, BatchPosition{}, BatchPosition{0, 0, 3, true}}) {
    const SyncPlan plan = make_sync_plan(Headers{at({0, 0, 4}), at(position)});
    EXPECT_FALSE(plan.mismatch) << *plan.mismatch;
    EXPECT_TRUE(plan.batches_may_differ);
  }
  EXPECT_FALSE(make_sync_plan(Headers{at({-1, 0, 3}), at({-1, 0, 4})}).mismatch);
  // Nothing is summed.
  Headers empty{at({0, 0, 3}), at({0, 0, 4})};
  for (SyncHeader& header : empty) header.has_gradients = 0;
  EXPECT_FALSE(make_sync_plan(empty).mismatch);
}

TEST(SyncHeaders, NamesEveryRankThatAborted) {
  Trailers trailers(3);
  EXPECT_FALSE(describe_aborts(trailers));
  trailers[1] = aborted_trailer("an exception");
  trailers[2] = aborted_trailer(std::string(500, 'x'));  // cut, not overrun
  const auto why = describe_aborts(trailers);
  ASSERT_TRUE(why);
  EXPECT_NE(why->find("rank 1 aborted this step: an exception"), std::string::npos) << *why;
  EXPECT_NE(why->find("rank 2"), std::string::npos) << *why;
}

TEST(SyncHeaders, OneRankThatNeedsAnotherSyncIsEnough) {
  Trailers trailers(2);
  EXPECT_FALSE(any_needs_another_sync(trailers));
  trailers[1].needs_another_sync = true;
  EXPECT_TRUE(any_needs_another_sync(trailers));
}

TEST(SyncHeader, TheRankThatWaitedLeastIsTheStraggler) {
  const std::vector<SyncHeader> headers{{.seconds_waited = 0.5}, {.seconds_waited = 0.1}, {.seconds_waited = 0.4}};
  const std::vector<double> late = straggler_times(headers);
  ASSERT_EQ(late.size(), 3U);
  EXPECT_DOUBLE_EQ(late[0], 0);
  EXPECT_DOUBLE_EQ(late[1], 0.4);
  EXPECT_DOUBLE_EQ(late[2], 0.5 - 0.4);
}

}  // namespace
}  // namespace tutti::sync::sync_header_test
