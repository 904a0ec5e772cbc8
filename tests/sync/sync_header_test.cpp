#include "sync/sync_header.h"

#include <gtest/gtest.h>

namespace tutti::sync::sync_header_test {
namespace {

using Headers = std::vector<SyncHeader>;
using Trailers = std::vector<SyncTrailer>;

SyncHeader plain_pass() {
  return {.passes = 1, .weighting = Weighting::plain};
}
SyncHeader weighted_pass(double weight) {
  return {.passes = 1, .weighting = Weighting::weighted, .weight = weight};
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
