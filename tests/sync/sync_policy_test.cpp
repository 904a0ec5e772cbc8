#include "sync/sync_policy.h"

#include <gtest/gtest.h>

namespace tutti::sync_policy_test {
namespace {

using Lengths = std::vector<WindowLengths>;

TEST(AutomaticPolicy, SynchronizesEveryPassUntilTwoWindowsOfAllRanksAgree) {
  AutomaticPolicy policy;
  EXPECT_TRUE(policy.synchronizes(1));
  EXPECT_TRUE(policy.synchronizes(3));
  policy.learn(Lengths{{.last = 4, .before = 0}, {.last = 4, .before = 0}});
  EXPECT_EQ(policy.expected(), 0);
  policy.learn(Lengths{{.last = 4, .before = 4}, {.last = 4, .before = 3}});
  EXPECT_EQ(policy.expected(), 0);
  policy.learn(Lengths{{.last = 4, .before = 4}, {.last = 4, .before = 4}});
  EXPECT_EQ(policy.expected(), 4);
}

TEST(AutomaticPolicy, ThenOnlyTheExpectedLastPass) {
  AutomaticPolicy policy;
  policy.learn(Lengths{{.last = 3, .before = 3}});
  EXPECT_FALSE(policy.synchronizes(1));
  EXPECT_FALSE(policy.synchronizes(2));
  EXPECT_TRUE(policy.synchronizes(3));
  EXPECT_FALSE(policy.synchronizes(4));  // left to step()
}

TEST(AutomaticPolicy, KeepsItsExpectationThroughOneOddWindowAndFollowsALastingChange) {
  AutomaticPolicy policy;
  policy.learn(Lengths{{.last = 4, .before = 4}, {.last = 4, .before = 4}});
  policy.learn(Lengths{{.last = 1, .before = 4}, {.last = 1, .before = 4}});
  EXPECT_EQ(policy.expected(), 4);
  policy.learn(Lengths{{.last = 2, .before = 2}, {.last = 2, .before = 2}});
  EXPECT_EQ(policy.expected(), 2);
}

}  // namespace
}  // namespace tutti::sync_policy_test
