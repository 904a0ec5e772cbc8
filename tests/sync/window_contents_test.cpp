// The contents of a window: cleared, kept and replaced gradients, weights, and passes under no_sync().
#include <gtest/gtest.h>

#include "support/rank_case.h"
#include "sync/toy_model.h"
#include "tutti/core/error.h"
#include "tutti/detail/sync/reducer.h"
#include "tutti/detail/sync/sync_scopes.h"

namespace tutti::test::window_contents_test {
namespace {

const RankCase weights_are_forgotten("weights_are_forgotten", [](const Communicator& communicator) {
  ToyModel toy(communicator);
  {
    const auto window = toy.accumulate(1, false);
    toy.pass({});  // reaches no parameter
  }
  toy.optimizer.zero_grad();
  {
    const auto window = toy.accumulate(1, true);
    toy.pass({.a = 4});
  }
  toy.expect_gradient(toy.a, 4);
});
TEST(ZeroGrad, ForgetsWeightsOfScopesThatReachedNothing) {
  weights_are_forgotten.on_threads({1, 2, 3});
}

const RankCase weights_stay_in_scope("weights_stay_in_scope", [](const Communicator& communicator) {
  ToyModel toy(communicator);
  {
    const auto window = toy.accumulate(3, false);
    toy.pass({});
    toy.optimizer.zero_grad();  // as in the documented loop, whose step() has done nothing yet
  }
  {
    const auto window = toy.accumulate(1, true);
    toy.optimizer.zero_grad();
    toy.pass({.a = 4});
  }
  toy.expect_gradient(toy.a, 1);
});
TEST(ZeroGrad, InAScopeLeavesWeightsAlone) {
  weights_stay_in_scope.on_threads({1, 2, 4});
}

const RankCase others_gradients("others_gradients", [](const Communicator& communicator) {
  ToyModel toy(communicator);
  const bool takes_part = communicator.rank() == 0;
  {
    const auto window = toy.accumulate(takes_part ? 2 : 0, false);
    toy.pass({.a = takes_part ? std::optional(8.0) : std::nullopt});
  }
  toy.reducer->synchronize();
  {
    const auto window = toy.accumulate(takes_part ? 2 : 0, true);
    toy.optimizer.zero_grad();  // must not remove a part of the synchronized gradient
    toy.pass({.a = takes_part ? 4 : 0});
  }
  toy.expect_gradient(toy.a, 3);
});
TEST(ZeroGrad, InAScopeLeavesAloneWhatOtherRanksBrought) {
  others_gradients.on_threads({1, 2, 4});
}

// Gradients that LibTorch and then tutti cleared do not count as modified by the user.
const RankCase cleared_twice("cleared_twice", [](const Communicator& communicator) {
  ToyModel toy(communicator);
  toy.pass({.a = 1, .b = 1});
  toy.optimizer.step();
  toy.inner->zero_grad();
  toy.optimizer.zero_grad(/*set_to_none=*/false);
  {
    const auto quiet = NoSyncScope({toy.reducer});
    toy.pass({.b = 2});
  }
  toy.optimizer.step();
  toy.expect_gradient(toy.b, 2);
});
TEST(ZeroGrad, AfterLibTorchsOwnIsNoChangeByHand) {
  cleared_twice.on_threads({1, 2});
}

const RankCase cleared_and_saved("cleared_and_saved", [](const Communicator& communicator) {
  ToyModel toy(communicator);
  {
    const auto window = toy.accumulate(3, false);
    toy.pass({.a = 4});
  }
  toy.inner->zero_grad();
  ToyModel resumed(communicator);
  resumed.reducer->load_state_dict(toy.reducer->state_dict());
  {
    const auto window = resumed.accumulate(1, true);
    resumed.pass({.a = 8});
  }
  resumed.expect_gradient(resumed.a, 8);
});
TEST(ZeroGrad, LibTorchsOwnBeforeASaveDropsTheWindow) {
  cleared_and_saved.on_threads({1, 2, 3});
}

// The zero_grad(false) of the module or of LibTorch's optimizer leaves zeros. The next window begins without gradients.
const RankCase zeroed_in_place("zeroed_in_place", [](const Communicator& communicator) {
  for (const bool last : {true, false}) {
    ToyModel toy(communicator);
    {
      const auto scope = toy.accumulate(1, true);
      toy.pass({.a = 1, .b = 1});
      toy.optimizer.step();
    }
    toy.inner->zero_grad(/*set_to_none=*/false);
    // Only the pass of rank 0 reaches the parameters.
    const bool reaches = communicator.rank() == 0;
    for (const bool ends : {false, true}) {
      if (!ends && last) continue;
      const auto scope = toy.accumulate(reaches ? 1 : 0, ends);
      toy.pass(reaches ? ToyPass{.a = 4} : ToyPass{});
      if (ends) toy.optimizer.step();
    }
    toy.expect_gradient(toy.a, 4);
    toy.expect_gradient(toy.b, 0);
  }
});
TEST(ZeroGrad, LibTorchsOwnInPlaceAfterAStepIsAccepted) {
  zeroed_in_place.on_threads({1, 2, 3});
}

const RankCase quiet_last_pass("quiet_last_pass", [](const Communicator& communicator) {
  ToyModel toy(communicator);
  const double mine = communicator.rank() == 0 ? communicator.size() : 0;
  const auto window = toy.accumulate(1, true);
  toy.pass({.a = mine});
  const auto quiet = NoSyncScope({toy.reducer});
  toy.pass({.a = 2 * mine});
  toy.optimizer.step();
  toy.expect_gradient(toy.a, 3);
});
TEST(Accumulate, StepSynchronizesWhatNoSyncLeftInTheLastScope) {
  quiet_last_pass.on_threads({1, 2, 4});
}

const RankCase replaced_in_window("replaced_in_window", [](const Communicator& communicator) {
  ToyModel toy(communicator);
  toy.pass({.a = communicator.rank() == 0 ? 2.0 * communicator.size() : 0, .loss_scale = 8});
  toy.a.mutable_grad() = toy.a.grad() * 0.5;
  toy.pass({.a = 3, .loss_scale = 8});
  toy.expect_gradient(toy.a, 4);
});
TEST(ReplacedGradient, FollowsTheLossScaleWithinItsWindow) {
  replaced_in_window.on_threads({1, 2, 4});
}

const RankCase replaced_before_step("replaced_before_step", [](const Communicator& communicator) {
  ToyModel toy(communicator);
  toy.pass({.a = 2});
  toy.a.mutable_grad() = toy.a.grad() * 0.5;
  toy.optimizer.step();
  toy.pass({.a = 3, .loss_scale = 8});
  toy.expect_gradient(toy.a, 4);
});
TEST(ReplacedGradient, FollowsTheLossScaleIntoTheNextWindow) {
  replaced_before_step.on_threads({1, 2, 4});
}

const RankCase replaced_and_unused("replaced_and_unused", [](const Communicator& communicator) {
  ToyModel toy(communicator);
  toy.pass({.a = 2, .b = 2});
  toy.a.mutable_grad() = toy.a.grad() * 0.5;
  toy.optimizer.step();
  {
    const auto quiet = NoSyncScope({toy.reducer});
    toy.pass({.b = 3});
  }
  toy.optimizer.step();
  toy.expect_gradient(toy.a, 1);
  toy.expect_gradient(toy.b, 5);
});
TEST(ReplacedGradient, IsNoChangeOfAPassThatDoesNotUseIt) {
  replaced_and_unused.on_threads({1, 2});
}

// The mean that a weighted window left is a mean like any other, for any weights of that window.
const RankCase kept_after_weights("kept_after_weights", [](const Communicator& communicator) {
  ToyModel toy(communicator);
  {
    const auto scope = toy.accumulate(2, true);
    toy.pass({.a = 2});
    toy.optimizer.step();
  }
  toy.a.mutable_grad() = toy.a.grad() * 0.5;
  toy.reducer->synchronize();
  toy.expect_gradient(toy.a, 0.5);
});
TEST(ReplacedGradient, SynchronizedAfterAWeightedStepStaysWhatItIs) {
  kept_after_weights.on_threads({1, 2, 4});
}

// Clipping after the step of a scope runs a synchronization to which no rank contributes.
const RankCase cleared_after_an_empty_round("cleared_after_an_empty_round", [](const Communicator& communicator) {
  ToyModel toy(communicator);
  const auto scope = toy.accumulate(1, true);
  toy.pass({.a = 4});
  toy.optimizer.step();
  toy.reducer->prepare_step();
  toy.optimizer.zero_grad(false);
  toy.optimizer.zero_grad();
  EXPECT_FALSE(toy.a.grad().defined());
});
TEST(ZeroGrad, AfterAnEmptySyncInAScopeClearsTwice) {
  cleared_after_an_empty_round.on_threads({1, 2, 3});
}

const RankCase replaced_and_cleared("replaced_and_cleared", [](const Communicator& communicator) {
  ToyModel toy(communicator);
  toy.pass({.a = 4});
  toy.a.mutable_grad() = toy.a.grad() * 0.5;
  toy.optimizer.zero_grad(false);
  toy.optimizer.step();
  toy.expect_gradient(toy.a, 0);
});
TEST(ReplacedGradient, ClearedInPlaceIsZeros) {
  replaced_and_cleared.on_threads({1, 2, 3});
}

// A mean that happens to be zero does not count as cleared.
const RankCase mean_of_zero("mean_of_zero", [](const Communicator& communicator) {
  ToyModel toy(communicator);
  {
    const auto scope = toy.accumulate(1, false);
    toy.pass(communicator.rank() == 0 ? ToyPass{.a = 0} : ToyPass{});
  }
  toy.reducer->synchronize();
  const auto scope = toy.accumulate(1, true);
  toy.pass({.a = 4});
  toy.expect_gradient(toy.a, 2);
});
TEST(Accumulate, AMeanOfZeroKeepsItsWeight) {
  mean_of_zero.on_threads({1, 2, 3});
}

// Gradients of a pass after a scope's step keep their values when the program synchronizes again.
const RankCase synchronized_when_left("synchronized_when_left", [](const Communicator& communicator) {
  ToyModel toy(communicator);
  {
    const auto scope = toy.accumulate(2, true);
    toy.optimizer.step();
    toy.pass({.a = 8});
  }
  toy.reducer->synchronize();
  toy.expect_gradient(toy.a, 4);
  toy.pass({.a = 2});
  toy.expect_gradient(toy.a, 6);
});
TEST(ReplacedGradient, WhatAScopeLeftIsAddedToAfterASynchronizationToo) {
  synchronized_when_left.on_threads({1, 2, 3});
}

const RankCase replaced_in_a_scope("replaced_in_a_scope", [](const Communicator& communicator) {
  ToyModel toy(communicator);
  const auto scope = toy.accumulate(1 + communicator.rank(), true);
  toy.pass({.a = 2.0 * (1 + communicator.rank())});
  toy.optimizer.step();
  const at::Tensor before = toy.a.detach().clone();
  toy.a.mutable_grad() = toy.a.grad() * 0.5;
  const at::Tensor replaced = toy.a.grad();
  toy.optimizer.step();
  EXPECT_TRUE(at::equal(toy.a, before - replaced)) << toy.a;
});
TEST(ReplacedGradient, AfterAStepInAScopeCountsAsSynchronized) {
  replaced_in_a_scope.on_threads({1, 2, 3});
}

// One rank has no pass in a window that its peers began on gradients of an earlier window.
const RankCase left_out_on_kept("left_out_on_kept", [](const Communicator& communicator) {
  ToyModel toy(communicator);
  {
    const auto scope = toy.accumulate(1, true);
    toy.pass({.a = 4});
    toy.optimizer.step();
    toy.pass({.a = 4});
  }
  toy.inner->zero_grad();
  for (int time = 0; time < 2; ++time) {
    const auto scope = toy.accumulate(1, true);
    if (time == 0 && communicator.rank() > 0) toy.pass({.a = 2});
  }
  EXPECT_EQ(toy.a.grad().defined(), communicator.size() > 1);
});
TEST(ReplacedGradient, ARankWithoutPassesAgreesOnWhatTheWindowBeganOn) {
  left_out_on_kept.on_threads({1, 2, 3});
}

// After a step, as before it, the program may replace the mean.
const RankCase replaced_after_step("replaced_after_step", [](const Communicator& communicator) {
  ToyModel toy(communicator);
  toy.pass({.a = 2});
  toy.optimizer.step();
  toy.a.mutable_grad() = toy.a.grad() * 0.5;
  toy.optimizer.step();
  EXPECT_TRUE(at::equal(toy.a, at::full({3}, -3.0F))) << toy.a;
  toy.b.mutable_grad() = at::ones({3});  // no pass computed this gradient
  EXPECT_THROW(toy.optimizer.step(), UsageError);
});
TEST(ReplacedGradient, AfterAStepCountsAsSynchronized) {
  replaced_after_step.on_threads({1, 2, 3});
}

// Ranks have zeros for different parameters. Later passes do not miss what the LibTorch optimizer's zero_grad()
// cleared.
const RankCase cleared_behind_zeros("cleared_behind_zeros", [](const Communicator& communicator) {
  for (const bool last : {false, true}) {
    ToyModel toy(communicator);
    toy.reducer->enter_no_sync();
    toy.pass(communicator.rank() == 0 ? ToyPass{.a = 1, .b = 1} : ToyPass{.a = 1});
    toy.reducer->leave_no_sync();
    toy.optimizer.zero_grad(false);
    toy.inner->zero_grad();
    {
      const auto scope = toy.accumulate(1, last);
      toy.pass({.a = 4});
    }
    if (!last) toy.reducer->synchronize();  // so that step() accepts the incomplete window
    toy.optimizer.step();
    toy.expect_gradient(toy.a, 4);
    EXPECT_FALSE(toy.b.grad().defined());
  }
});
TEST(ZeroGrad, LibTorchsOwnAfterZerosIsNotNoticedOnSomeRanksOnly) {
  cleared_behind_zeros.on_threads({1, 2, 3});
}

// Ranks used different parameters before clearing. All gradients become zeros on all ranks, as on one process.
const RankCase cleared_in_place("cleared_in_place", [](const Communicator& communicator) {
  ToyModel toy(communicator);
  {
    const auto scope = toy.accumulate(1, false);
    toy.pass(communicator.rank() == 0 ? ToyPass{.a = 1} : ToyPass{.b = 1});
  }
  toy.optimizer.zero_grad(false);
  const auto scope = toy.accumulate(1, true);
  toy.pass({});
  toy.optimizer.step();
  toy.expect_gradient(toy.a, 0);
  toy.expect_gradient(toy.b, 0);
});
TEST(ZeroGrad, InPlaceInAPendingWindowLeavesZerosOnAllRanks) {
  cleared_in_place.on_threads({2, 4});
}

const RankCase cleared_in_place_plain("cleared_in_place_plain", [](const Communicator& communicator) {
  ToyModel toy(communicator);
  toy.reducer->enter_no_sync();
  toy.pass(communicator.rank() == 0 ? ToyPass{.a = 1} : ToyPass{.b = 1});
  toy.reducer->leave_no_sync();
  toy.optimizer.zero_grad(false);
  toy.optimizer.step();
  toy.expect_gradient(toy.a, 0);
  toy.expect_gradient(toy.b, 0);
});
TEST(ZeroGrad, InPlaceAfterPlainPassesLeavesZerosOnAllRanks) {
  cleared_in_place_plain.on_threads({2, 4});
}

}  // namespace
}  // namespace tutti::test::window_contents_test
