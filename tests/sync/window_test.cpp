#include "sync/window.h"

#include <gtest/gtest.h>

#include "tutti/core/error.h"

namespace tutti::window_test {
namespace {

TEST(Window, CountsPassesAndRemembersTheLengthsOfSteppedWindows) {
  Window window;
  for (int pass = 0; pass < 3; ++pass) {
    window.begin_plain_pass();
    window.add_pending();
  }
  EXPECT_EQ(window.passes(), 3);
  EXPECT_EQ(window.pending(), 3);
  window.on_sync();
  EXPECT_EQ(window.pending(), 0);
  window.restart(true);
  EXPECT_EQ(window.lengths().last, 3);
  window.begin_plain_pass();
  window.restart(false);  // zero_grad: no step, no length
  EXPECT_EQ(window.lengths().last, 3);
  EXPECT_EQ(window.steps(), 1);
  window.begin_plain_pass();
  window.restart(true);
  EXPECT_EQ(window.lengths().last, 1);
  EXPECT_EQ(window.lengths().before, 3);
}

TEST(Window, AScopeWeighsOnceHoweverManyPassesItHolds) {
  Window window;
  window.begin_weighted_pass();
  window.add_weight(0.5);
  window.begin_weighted_pass();
  EXPECT_EQ(window.passes(), 2);
  EXPECT_DOUBLE_EQ(window.weight(), 0.5);
  window.restart(true);
  EXPECT_DOUBLE_EQ(window.weight(), 0);
  EXPECT_EQ(window.weighting(), Weighting::undecided);
}

TEST(Window, RefusesToMixPlainAndWeightedPasses) {
  Window plain_first;
  plain_first.begin_plain_pass();
  EXPECT_THROW(plain_first.begin_weighted_pass(), UsageError);
  EXPECT_THROW(plain_first.add_weight(1), UsageError);
  Window weighted_first;
  weighted_first.begin_weighted_pass();
  EXPECT_THROW(weighted_first.begin_plain_pass(), UsageError);
  weighted_first.restart(false);
  EXPECT_NO_THROW(weighted_first.begin_plain_pass());
}

}  // namespace
}  // namespace tutti::window_test
