// The window's state and the headers where a pass reaches other parts of the model only. No I/O.
#include <gtest/gtest.h>

#include <array>
#include <optional>

#include "sync/accumulation_window_state.h"
#include "sync/sync_header.h"

namespace tutti::test::joined_passes_test {
namespace {

using sync::AccumulationWindowState;

TEST(JoinedPasses, APassOverOtherPartsCountsInTheLengthOnly) {
  AccumulationWindowState state;
  state.join_pass();
  state.end_joined_pass();
  EXPECT_TRUE(state.sync_due_at_step());
  EXPECT_TRUE(state.is_idle());
  EXPECT_EQ(state.window().length(), 1);
  AccumulationWindowState loaded;
  loaded.load_state_dict(state.state_dict());
  EXPECT_TRUE(loaded.sync_due_at_step());
  EXPECT_EQ(loaded.window().length(), 1);
  state.begin_pass(std::nullopt);
  state.end_pass(false);
  EXPECT_FALSE(state.may_leave_out_sync());
  state.begin_sync(std::nullopt);
  state.end_sync(Weighting::plain, false, false);
  state.step();
  EXPECT_EQ(state.window().lengths().last, 2);
  EXPECT_FALSE(state.sync_due_at_step());
}

TEST(JoinedPasses, AJoinedSyncThatNoRankReachedChangesNothing) {
  AccumulationWindowState state;
  state.begin_pass(std::nullopt);
  state.begin_sync(std::nullopt);
  state.end_sync(Weighting::plain, false, false);
  state.end_pass(true);
  state.step();
  state.join_pass();
  state.begin_sync("weight");
  state.end_unreached_sync();
  EXPECT_TRUE(state.is(sync::GradientState::consumed));
  EXPECT_FALSE(state.sync_due_at_step());
  state.on_clear(sync::Clearing::finished, false);
  EXPECT_FALSE(state.began_on_carried_over());
  // The weights of earlier scopes, whose passes have reached the part on other ranks, remain.
  state.open_scope({.syncs = false});
  state.add_scope_weight();
  state.close_scope();
  state.open_scope({.syncs = true});
  state.begin_sync(std::nullopt);
  state.end_unreached_sync();
  EXPECT_EQ(state.window().weight(), 1);
}

TEST(JoinedPasses, TheWeightOfAPassAfterASyncOfTheScopeIsSynchronizedToo) {
  AccumulationWindowState state;
  state.open_scope({.syncs = false});
  state.begin_pass(std::nullopt);
  state.end_pass(false);
  state.close_scope();
  state.open_scope({.syncs = true});
  state.begin_sync(std::nullopt);
  state.end_sync(Weighting::weighted, false, false);
  EXPECT_FALSE(state.sync_due_at_step());
  state.add_scope_weight();
  EXPECT_TRUE(state.sync_due_at_step());
  EXPECT_TRUE(state.sync_due_at_close());
  EXPECT_FALSE(state.can_be_saved());
}

// Other ranks have added to a mean that a step has used.
TEST(JoinedPasses, AGradientOfAnEndedWindowHasTheWeightThatTheOtherRanksGiveToIt) {
  for (const Weighting weighting : {Weighting::plain, Weighting::weighted}) {
    AccumulationWindowState state;
    state.step();
    state.join_pass();
    state.end_joined_pass();
    state.open_scope({.weight = 3, .syncs = true});
    state.begin_sync("weight");
    state.on_headers(weighting);
    EXPECT_EQ(state.carried_over_weight(), weighting == Weighting::plain ? 1 : 0);
  }
}

// A step without gradients, a scope whose pass does not reach the part, then clipping in the last scope.
TEST(JoinedPasses, ASyncWithoutGradientsInAScopeKeepsTheWeightsOfEarlierScopes) {
  AccumulationWindowState state;
  state.step();
  state.open_scope({.weight = 3, .syncs = false});
  state.add_scope_weight();
  state.close_scope();
  state.open_scope({.weight = 1, .syncs = true});
  state.begin_sync(std::nullopt);
  state.end_sync(Weighting::undecided, true, true);
  EXPECT_EQ(state.window().weight(), 3);
  state.begin_pass(std::nullopt);
  EXPECT_EQ(state.window().weight(), 4);
}

TEST(JoinedPasses, ARankWithoutAPassInASynchronizedPlainWindowHasNoWeights) {
  AccumulationWindowState state;
  state.open_scope({.syncs = false});
  state.add_scope_weight();
  state.close_scope();
  state.join_pass();
  state.begin_sync(std::nullopt);
  state.end_sync(Weighting::plain, false, false, true);
  EXPECT_EQ(state.window().weighting(), Weighting::plain);
  EXPECT_EQ(state.window().weight(), 0);
  EXPECT_FALSE(state.awaits_last_scope());
}

TEST(JoinedPasses, ASyncIsLeftOutIfThePassReachedThePartOnNoRank) {
  std::array<sync::SyncHeader, 2> headers{sync::SyncHeader{.has_gradients = 1, .joined = 1},
                                          sync::SyncHeader{.joined = 1}};
  EXPECT_TRUE(sync::make_sync_plan(headers).unreached);
  EXPECT_TRUE(sync::make_sync_plan(headers).empty);
  headers[1].joined = 0;
  EXPECT_FALSE(sync::make_sync_plan(headers).unreached);
  EXPECT_FALSE(sync::make_sync_plan(headers).empty);
}

// The optimizer has stepped in the scope, and a pass has followed.
TEST(WindowState, AWindowThatIsSavedInItsLastScopeIsSavedAsClosed) {
  AccumulationWindowState state;
  const auto run_pass = [&state] {
    state.begin_pass(std::nullopt);
    state.begin_sync(std::nullopt);
    state.end_sync(Weighting::weighted, false, false, true);
    state.end_pass(true);
  };
  state.open_scope({.syncs = true});
  run_pass();
  state.step();
  run_pass();
  ASSERT_TRUE(state.can_be_saved());
  const StateDict open = state.state_dict();
  state.close_scope();
  const StateDict closed = state.state_dict();
  for (const char* name : {"consumed", "left", "last_scope_closed"}) {
    const auto value = [name](const StateDict& of) { return of.contains(name) && of.get<bool>(name); };
    EXPECT_EQ(value(open), value(closed)) << name;
  }
  EXPECT_EQ(open.get<double>("window.weight"), closed.get<double>("window.weight"));
}

}  // namespace
}  // namespace tutti::test::joined_passes_test
