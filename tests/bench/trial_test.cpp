// Ranks: none. The trials of `tutti bench failures` in which all survivors name the failed rank.
#include "failures/trial.h"

#include <gtest/gtest.h>

namespace tutti::bench::trial_test {
namespace {

constexpr int ranks = 4;
const Moment failed{.rank = 3, .nanoseconds = 1'000'000'000};

Moment told(int rank, std::vector<int> named) {
  return {.rank = rank, .nanoseconds = 2'000'000'000 + rank, .named = std::move(named), .said = "it exited"};
}

int misnamed(const std::string& failure, const std::vector<Moment>& moments) {
  FailuresRow row{.failure = failure, .during = "training"};
  const bool fine = add_trial(row, moments, ranks);
  EXPECT_EQ(fine, row.misnamed == 0);
  return row.misnamed;
}

TEST(Trial, IsFineWhereAllSurvivorsNameTheRankThatFailed) {
  FailuresRow row{.failure = "killed", .during = "training"};
  EXPECT_TRUE(add_trial(row, {told(1, {3}), failed, told(0, {3}), told(2, {3})}, ranks));
  ASSERT_EQ(row.seconds.size(), 1U);
  EXPECT_NEAR(row.seconds.front(), 1, 1e-6);
}

TEST(Trial, IsNotWhereASurvivorNamesAnotherRankOrNoneOrDoesNotKnow) {
  EXPECT_EQ(misnamed("killed", {failed, told(0, {3}), told(1, {2}), told(2, {3})}), 1);
  EXPECT_EQ(misnamed("killed", {failed, told(0, {3}), told(1, {}), told(2, {3})}), 1);
  EXPECT_EQ(misnamed("killed", {failed, told(0, {3}), told(2, {3})}), 1);
  EXPECT_EQ(misnamed("stopped", {failed, told(0, {3}), told(1, {3}), told(2, {3}), told(3, {0})}), 1);
  EXPECT_EQ(misnamed("killed", {}), 1);
}

TEST(Trial, OfACutNodeEachSideNamesTheOther) {
  EXPECT_EQ(misnamed("cut", {failed, told(0, {2, 3}), told(1, {3}), told(2, {0}), told(3, {1})}), 0);
  EXPECT_EQ(misnamed("cut", {failed, told(0, {2}), told(1, {3}), told(2, {3}), told(3, {1})}), 1);
}

}  // namespace
}  // namespace tutti::bench::trial_test
