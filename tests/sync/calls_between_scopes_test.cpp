// Calls of a loop in and between the scopes of a window.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "support/rank_case.h"
#include "support/training.h"
#include "sync/toy_model.h"
#include "tutti/core/error.h"

namespace tutti::test::calls_between_scopes_test {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

const std::vector<int> one_to_three = {1, 2, 3};

// The loop closes the scope before step(), so that step() would act in every micro-batch.
TEST(CallsBetweenScopes, AStepBetweenTheScopesOfAWindowIsAnErrorThatNamesTheRemedy) {
  for (const int ranks : one_to_three) {
    run_thread_ranks(ranks, [](const Communicator& communicator) {
      for (const bool syncs_each_batch : {false, true}) {
        ToyModel toy(communicator);
        const auto micro_batch = [&](bool last) {
          const AccumulateScope scope(
              {{.reducer = toy.reducer, .step = {.syncs = last, .sync_each_batch = syncs_each_batch}}});
          toy.pass({.a = 4});
        };
        micro_batch(false);
        EXPECT_THAT([&] { toy.optimizer.step(); },
                    ThrowsMessage<UsageError>(HasSubstr("into the scope, where they act at the window's end")));
        EXPECT_TRUE(at::equal(toy.a, at::zeros({3}))) << toy.a;
        toy.optimizer.zero_grad();
        micro_batch(true);
        toy.optimizer.step();  // the window's last scope has closed
        EXPECT_TRUE(at::equal(toy.a, at::full({3}, -4.0F))) << toy.a;
      }
    });
  }
}

TEST(CallsBetweenScopes, AStepBetweenScopesUsesAWindowThatTheProgramHasSynchronized) {
  for (const int ranks : one_to_three) {
    run_thread_ranks(ranks, [](const Communicator& communicator) {
      ToyModel toy(communicator);
      {
        const auto scope = toy.accumulate(1, false);
        toy.pass({.a = 4});
      }
      toy.reducer->synchronize();
      toy.optimizer.step();
      EXPECT_TRUE(at::equal(toy.a, at::full({3}, -4.0F))) << toy.a;
    });
  }
}

// A pass over one of two models counts the scope's weight for both.
TEST(CallsBetweenScopes, AScopeCanBeSavedAfterAPassOverAnotherModel) {
  for (const int ranks : one_to_three) {
    run_thread_ranks(ranks, [](const Communicator& communicator) {
      ToyModel one(communicator), other(communicator);
      const auto scope_of_both = [&](bool last) {
        return AccumulateScope({{.reducer = one.reducer, .step = {.weight = 3, .syncs = last}},
                                {.reducer = other.reducer, .step = {.weight = 3, .syncs = last}}});
      };
      const auto expect_resumed = [&](const StateDict& saved, float gradient) {
        ToyModel resumed(communicator);
        resumed.reducer->load_state_dict(saved);
        const auto scope = resumed.accumulate(1, true);
        resumed.pass({.a = 8});
        resumed.expect_gradient(resumed.a, gradient);
      };
      {
        const auto scope = scope_of_both(false);
        EXPECT_THROW((void)one.reducer->state_dict(), UsageError);
        other.pass({.a = 4});
        expect_resumed(one.reducer->state_dict(), 2);  // of the weights 3 and 1
      }
      const auto scope = scope_of_both(true);
      one.pass({.a = 6});
      one.optimizer.step();
      one.optimizer.zero_grad();
      other.pass({.a = 4});
      expect_resumed(one.reducer->state_dict(), 8);  // the next window
    });
  }
}

// The mean lacks the weight of the pass over the other model.
TEST(CallsBetweenScopes, AScopeWithoutTheSyncOfItsWeightCannotBeSaved) {
  run_thread_ranks(2, [](const Communicator& communicator) {
    ToyModel one(communicator), other(communicator);
    for (const bool is_first : {true, false}) {
      const AccumulateScope scope(
          {{.reducer = one.reducer, .step = {.syncs = true}}, {.reducer = other.reducer, .step = {.syncs = true}}});
      if (is_first) {
        one.pass({.a = 6});
        continue;
      }
      one.reducer->synchronize();
      (other.a.sum() * 4).backward();
      EXPECT_THROW((void)one.reducer->state_dict(), UsageError);
    }
    ToyModel::expect_gradient(one.a, 3);
  });
}

TEST(CallsBetweenScopes, ClearingBetweenTheScopesOfAWindowWarnsOnce) {
  run_thread_ranks(1, [](const Communicator& communicator) {
    ToyModel toy(communicator);
    const auto cleared_after = [&](bool last) {
      {
        const auto scope = toy.accumulate(1, last);
        toy.pass({.a = 4});
      }
      testing::internal::CaptureStderr();
      toy.optimizer.zero_grad();
      return testing::internal::GetCapturedStderr();
    };
    EXPECT_EQ(cleared_after(true), "");
    EXPECT_THAT(cleared_after(false), HasSubstr("discards the passes of the window so far"));
    EXPECT_EQ(cleared_after(false), "");
  });
}

}  // namespace
}  // namespace tutti::test::calls_between_scopes_test
