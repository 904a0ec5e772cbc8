#include "sync/sync_decision.h"

#include <gtest/gtest.h>

#include <vector>

#include "tutti/core/error.h"

namespace tutti::sync_decision_test {
namespace {

using sync::SyncDecision;

constexpr std::nullopt_t outside = std::nullopt;

TEST(SyncDecision, NoSyncNestsAndATriggerCountsForOnePass) {
  SyncDecision decision(SyncPolicy::every_pass, false);
  EXPECT_TRUE(decision.begin_pass(1, outside));
  decision.enter_no_sync();
  decision.enter_no_sync();
  decision.leave_no_sync();
  EXPECT_FALSE(decision.begin_pass(2, outside));
  decision.trigger();
  EXPECT_TRUE(decision.begin_pass(3, outside));
  EXPECT_FALSE(decision.begin_pass(4, outside));
  decision.leave_no_sync();
  EXPECT_TRUE(decision.begin_pass(5, outside));
}

TEST(SyncDecision, AScopeDecidesInsteadOfThePolicy) {
  SyncDecision decision(SyncPolicy::every_pass, false);
  EXPECT_FALSE(decision.begin_pass(1, AccumulationStep{.syncs = false}));
  EXPECT_TRUE(decision.begin_pass(1, AccumulationStep{.syncs = false, .sync_each_batch = true}));
  EXPECT_TRUE(decision.begin_pass(2, AccumulationStep{.syncs = true}));
  decision.enter_no_sync();
  EXPECT_FALSE(decision.begin_pass(3, AccumulationStep{.syncs = true}));
}

TEST(SyncDecision, NoPassSynchronizesIfTheSumIsReproducible) {
  SyncDecision decision(SyncPolicy::every_pass, true);
  decision.trigger();
  EXPECT_FALSE(decision.begin_pass(1, AccumulationStep{.syncs = true}));
  // The trigger counted for that pass.
  EXPECT_FALSE(decision.begin_pass(2, outside));
}

TEST(SyncDecision, TheAutomaticPolicyLearnsAndReportsItsFirstEarlyStepOnly) {
  SyncDecision decision(SyncPolicy::automatic, false);
  decision.learn(std::vector<WindowLengths>{{.last = 2, .before = 2}});
  EXPECT_FALSE(decision.begin_pass(1, outside));
  EXPECT_TRUE(decision.begin_pass(2, outside));
  EXPECT_EQ(decision.on_early_step(), 2);
  EXPECT_EQ(decision.on_early_step(), std::nullopt);
  decision.reset_learned();
  EXPECT_TRUE(decision.begin_pass(1, outside));
  EXPECT_EQ(SyncDecision(SyncPolicy::every_pass, false).on_early_step(), std::nullopt);
}

TEST(SyncDecision, NoSyncSwitchesTheAutomaticPolicyOff) {
  SyncDecision decision(SyncPolicy::automatic, false);
  decision.learn(std::vector<WindowLengths>{{.last = 2, .before = 2}});
  decision.enter_no_sync();
  decision.leave_no_sync();
  EXPECT_TRUE(decision.begin_pass(1, outside));
}

TEST(SyncDecision, RestoresItsStateAndKeepsItIfTheSavedOneIsNotValid) {
  SyncDecision decision(SyncPolicy::automatic, false);
  decision.learn(std::vector<WindowLengths>{{.last = 3, .before = 3}});
  StateDict state;
  decision.save(state);
  SyncDecision loaded(SyncPolicy::automatic, false);
  loaded.load(state);
  EXPECT_FALSE(loaded.begin_pass(1, outside));
  EXPECT_TRUE(loaded.begin_pass(3, outside));
  StateDict damaged;
  damaged.set("expected_passes", std::int64_t{1});
  EXPECT_THROW(loaded.load(damaged), CheckpointError);
  EXPECT_FALSE(loaded.begin_pass(1, outside));
}

}  // namespace
}  // namespace tutti::sync_decision_test
