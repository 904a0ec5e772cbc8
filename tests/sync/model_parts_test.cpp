// Several reducers for the parts of one model, which backward passes of some ranks do not reach. 2 and 3 ranks.
#include <gtest/gtest.h>

#include <limits>
#include <optional>

#include "sync/model_parts.h"
#include "tutti/core/error.h"

namespace tutti::test {
namespace {

TEST(ModelParts, RanksThatReachDifferentPartsDoNotWaitForEachOther) {
  for (const int ranks : {2, 3}) {
    run_thread_ranks(
        ranks,
        [](const Communicator& communicator) {
          Parts parts(communicator, with_policy(SyncPolicy::every_pass));
          for (int step = 0; step < 4; ++step) {
            const bool reaches_first = (communicator.rank() + step) % 2 == 0;
            reaches_first ? parts.pass(6, std::nullopt) : parts.pass(std::nullopt, 6);
            int reached = 0;
            for (int rank = 0; rank < communicator.size(); ++rank) reached += (rank + step) % 2 == 0 ? 1 : 0;
            const float of_first = 6.0F * static_cast<float>(reached) / static_cast<float>(communicator.size());
            ToyModel::expect_gradient(parts.first.a, of_first);
            ToyModel::expect_gradient(parts.second.a, 6 - of_first);
            parts.finish();
          }
        },
        soon);
  }
}

TEST(ModelParts, AGradientThatTheProgramHoldsKeepsItsValuesWhereAPassDoesNotReachThePart) {
  run_thread_ranks(
      2,
      [](const Communicator& communicator) {
        Parts parts(communicator);
        parts.pass(4, std::nullopt);
        const at::Tensor held = parts.first.a.grad();
        parts.first.optimizer.step();
        parts.first.inner->zero_grad();  // not the prepared optimizer
        const auto scope = parts.accumulate(0.5, true);
        communicator.rank() == 0 ? parts.pass(std::nullopt, 1) : parts.pass(6, std::nullopt);
        ToyModel::expect_gradient(parts.first.a, 6);
        EXPECT_TRUE(at::equal(held, at::full({3}, 4.0F))) << held;
      },
      soon);
}

TEST(ModelParts, APartThatIsClearedInPlaceBeforeItsFirstGradientHasNoWindow) {
  run_thread_ranks(
      2,
      [](const Communicator& communicator) {
        Parts parts(communicator);
        {
          const auto scope = parts.accumulate(1, false);
          parts.pass(2, std::nullopt);
        }
        parts.second.optimizer.zero_grad(/*set_to_none=*/false);
        {
          const auto scope = parts.accumulate(1, true);
          parts.pass(2, std::nullopt);
        }
        parts.first.optimizer.zero_grad();
        parts.pass(2, 4);
        ToyModel::expect_gradient(parts.second.a, 4);
      },
      soon);
}

TEST(ModelParts, APartThatNoRankReachesIsNotSynchronized) {
  run_thread_ranks(
      2,
      [](const Communicator& communicator) {
        Parts parts(communicator, with_policy(SyncPolicy::every_pass));
        for (int step = 0; step < 3; ++step) {
          parts.pass(2, std::nullopt);
          EXPECT_FALSE(parts.second.a.grad().defined());
          parts.first.optimizer.step();
          parts.pass(std::nullopt, 4);
          ToyModel::expect_gradient(parts.first.a, 2);
          ToyModel::expect_gradient(parts.second.a, 4);
          parts.finish();
        }
        EXPECT_EQ(parts.first.reducer->stats().syncs, 3);
        EXPECT_EQ(parts.second.reducer->stats().syncs, 3);
      },
      soon);
}

// The second part has gradients on rank 0 only. They wait for the third pass, which does not reach the part.
TEST(ModelParts, TheAutomaticPolicyCountsPassesOverAllParts) {
  run_thread_ranks(
      2,
      [](const Communicator& communicator) {
        Parts parts(communicator, with_policy(SyncPolicy::automatic));
        for (int step = 0; step < 6; ++step) {
          parts.pass(2, communicator.rank() == 0 ? std::optional(4.0) : std::nullopt);
          parts.pass(std::nullopt, 2);
          parts.pass(2, std::nullopt);
          ToyModel::expect_gradient(parts.first.a, 4);
          ToyModel::expect_gradient(parts.second.a, 4);
          parts.finish();
        }
        EXPECT_LT(parts.second.reducer->stats().syncs, 12);
        EXPECT_EQ(parts.second.reducer->stats().syncs_in_step, 0);
        // A shorter window synchronizes in step(), on all ranks.
        parts.pass(2, communicator.rank() == 0 ? std::optional(4.0) : std::nullopt);
        for (ToyModel* part : {&parts.first, &parts.second}) part->optimizer.step();
        ToyModel::expect_gradient(parts.first.a, 2);
        ToyModel::expect_gradient(parts.second.a, 2);
      },
      soon);
}

// One pass over two models of two parts each, of which the ranks reach other parts in another order.
TEST(ModelParts, TwoModelsInOnePassDoNotWaitForEachOther) {
  run_thread_ranks(
      2,
      [](const Communicator& communicator) {
        Parts one(communicator, with_policy(SyncPolicy::every_pass));
        Parts other(communicator, with_policy(SyncPolicy::every_pass));
        for (int step = 0; step < 3; ++step) {
          if (communicator.rank() == 0) {
            (other.first.a.sum() * 2 + one.first.a.sum() * 2).backward();
          } else {
            (one.second.a.sum() * 2 + other.second.a.sum() * 2).backward();
          }
          for (ToyModel* part : {&one.first, &one.second, &other.first, &other.second}) {
            ToyModel::expect_gradient(part->a, 1);
          }
          one.finish();
          other.finish();
        }
      },
      soon);
}

TEST(ModelParts, AnOverflowEndsWithItsGradients) {
  run_thread_ranks(
      2,
      [](const Communicator& communicator) {
        Parts parts(communicator, {.policy = SyncPolicy::every_pass, .detect_overflow = true});
        parts.pass(2, std::numeric_limits<double>::infinity());
        EXPECT_TRUE(parts.second.reducer->overflowed());
        for (ToyModel* part : {&parts.first, &parts.second}) part->optimizer.zero_grad();
        parts.pass(2, std::nullopt);
        EXPECT_FALSE(parts.second.reducer->overflowed());
        // Cleared without the optimizer.
        parts.pass(2, std::numeric_limits<double>::infinity());
        parts.second.reducer->prepare_step();
        parts.second.reducer->on_optimizer_step();
        EXPECT_TRUE(parts.second.reducer->overflowed());
        parts.second.inner->zero_grad();
        parts.pass(2, std::nullopt);
        parts.second.reducer->prepare_step();
        EXPECT_FALSE(parts.second.reducer->overflowed());
        // No step has taken the gradients.
        parts.pass(2, std::numeric_limits<double>::infinity());
        parts.second.inner->zero_grad();
        parts.pass(2, std::nullopt);
        parts.second.reducer->prepare_step();
        EXPECT_FALSE(parts.second.reducer->overflowed());
      },
      soon);
}

// Both ranks have an exception in one pass, and reach different parts first in the next one.
TEST(ModelParts, APassAfterAnExceptionDoesNotWaitForTheOrderOfParts) {
  run_thread_ranks(
      2,
      [](const Communicator& communicator) {
        Parts parts(communicator, with_policy(SyncPolicy::every_pass));
        EXPECT_THROW(parts.pass(2, 4, true), std::runtime_error);
        const bool is_first = communicator.rank() == 0;
        is_first ? parts.pass(2, std::nullopt) : parts.pass(std::nullopt, 4);
        ToyModel::expect_gradient(parts.first.a, 1);
        ToyModel::expect_gradient(parts.second.a, 2);
      },
      soon);
}

// Rank 0 changes a gradient that waits for its synchronization, so the part can neither join a pass nor begin one.
TEST(ModelParts, APartThatRefusesAPassIsAnErrorOnAllRanks) {
  for (const std::optional<double> of_second : {std::optional<double>(), std::optional(4.0)}) {
    run_thread_ranks(
        2,
        [of_second](const Communicator& communicator) {
          Parts parts(communicator, with_policy(SyncPolicy::every_pass));
          {
            const NoSyncScope quiet({parts.first.reducer, parts.second.reducer});
            parts.pass(std::nullopt, 4);
          }
          if (communicator.rank() == 0) {
            parts.second.a.mutable_grad().mul_(2);
            EXPECT_THROW(parts.pass(2, of_second), UsageError);
          } else {
            EXPECT_THROW(parts.pass(2, of_second), PeerError);
          }
          for (ToyModel* part : {&parts.first, &parts.second}) part->optimizer.zero_grad();
          parts.pass(2, 4);
          ToyModel::expect_gradient(parts.second.a, 4);
        },
        soon);
  }
}

// The first exception ends a pass that does not synchronize. Neither pass of rank 0 reaches the second part.
TEST(ModelParts, ASecondExceptionInAWindowInvalidatesThePartsThatItHasNotReached) {
  run_thread_ranks(
      2,
      [](const Communicator& communicator) {
        Parts parts(communicator, with_policy(SyncPolicy::every_pass));
        const bool explodes = communicator.rank() == 0;
        const auto fail = [&] { EXPECT_THROW(parts.pass(2, 4, true), std::runtime_error); };
        {
          const NoSyncScope quiet({parts.first.reducer, parts.second.reducer});
          explodes ? fail() : parts.pass(2, 4);
        }
        if (explodes) {
          fail();
        } else {
          EXPECT_THROW(parts.pass(2, 4), PeerError);
        }
        for (ToyModel* part : {&parts.first, &parts.second}) part->optimizer.zero_grad();
        parts.pass(2, 4);
        ToyModel::expect_gradient(parts.first.a, 2);
        ToyModel::expect_gradient(parts.second.a, 4);
      },
      soon);
}

TEST(ModelParts, AnExceptionInAPassInvalidatesThePartsThatItHasNotReached) {
  for (const bool of_accelerator : {true, false}) {
    run_thread_ranks(
        2,
        [of_accelerator](const Communicator& communicator) {
          Parts parts(communicator, with_policy(SyncPolicy::every_pass));
          const bool explodes = communicator.rank() == 1;
          if (explodes) {
            EXPECT_THROW(parts.pass(2, 4, true), std::runtime_error);
            for (ToyModel* part : {&parts.first, &parts.second}) {
              if (of_accelerator) part->reducer->on_backward_error();
              part->optimizer.zero_grad();
            }
          } else {
            EXPECT_THROW(parts.pass(2, 4), PeerError);
            for (ToyModel* part : {&parts.first, &parts.second}) part->optimizer.zero_grad();
          }
          parts.pass(2, 4);
          ToyModel::expect_gradient(parts.first.a, 2);
          ToyModel::expect_gradient(parts.second.a, 4);
          parts.finish();
        },
        soon);
  }
}

}  // namespace
}  // namespace tutti::test
