// Parts of one model in accumulate() scopes and across their borders. 2 ranks.
#include <gtest/gtest.h>

#include <optional>
#include <stdexcept>

#include "sync/model_parts.h"

namespace tutti::test {
namespace {

// All ranks skip the first step and clear the second part without the optimizer. Rank 1 does not reach the part then.
TEST(PartsInScopes, APassOverOtherPartsCountsItsWeightInTheWindowAfterAClearing) {
  for (const bool of_accelerator : {true, false}) {
    run_thread_ranks(
        2,
        [of_accelerator](const Communicator& communicator) {
          Parts parts(communicator);
          const auto run_scope = [&](std::optional<double> of_second) {
            const auto scope = parts.accumulate(1, true);
            parts.pass(2, of_second);
            for (ToyModel* part : {&parts.first, &parts.second}) {
              if (of_accelerator) part->reducer->add_scope_weight();
            }
          };
          run_scope(4);
          for (ToyModel* part : {&parts.first, &parts.second}) part->inner->zero_grad();
          run_scope(communicator.rank() == 0 ? std::optional(4.0) : std::nullopt);
          ToyModel::expect_gradient(parts.first.a, 2);
          ToyModel::expect_gradient(parts.second.a, 2);
          parts.finish();
          run_scope(4);
          ToyModel::expect_gradient(parts.second.a, 4);
        },
        soon);
  }
}

// Rank 0 uses both parts, rank 1 the first one only. No step follows.
TEST(PartsInScopes, ClearingAfterTheLastScopesPassClearsThePartOnAllRanks) {
  run_thread_ranks(
      2,
      [](const Communicator& communicator) {
        Parts parts(communicator);
        for (int window = 0; window < 3; ++window) {
          const auto scope = parts.accumulate(1, true);
          parts.pass(2, communicator.rank() == 0 ? std::optional(4.0) : std::nullopt);
          ToyModel::expect_gradient(parts.second.a, 2);
          parts.first.optimizer.zero_grad();
          parts.second.optimizer.zero_grad();
        }
      },
      soon);
}

// The scope is of the first part.
TEST(PartsInScopes, APartOutsideOfTheScopeDoesNotJoin) {
  run_thread_ranks(
      2,
      [](const Communicator& communicator) {
        Parts parts(communicator);
        for (int pass = 0; pass < 2 + communicator.rank(); ++pass) {
          const auto scope = parts.first.accumulate(1, false);
          parts.pass(3, std::nullopt);
        }
        {
          const auto scope = parts.first.accumulate(1, true);
          parts.pass(3, std::nullopt);
          parts.first.optimizer.step();
        }
        EXPECT_EQ(parts.second.reducer->stats().syncs, 0);
        EXPECT_FALSE(parts.second.a.grad().defined());
      },
      soon);
}

TEST(PartsInScopes, AnExceptionInAScopeLeavesPartsOutsideOfTheScopeAlone) {
  run_thread_ranks(
      2,
      [](const Communicator& communicator) {
        Parts parts(communicator, with_policy(SyncPolicy::every_pass));
        if (communicator.rank() == 0) {
          const auto scope = parts.first.accumulate(1, false);
          at::Tensor loss = Explosive::apply(at::zeros({}).requires_grad_());
          loss = loss + parts.first.a.sum();  // a later node, so the pass reaches it first
          EXPECT_THROW(loss.backward(), std::runtime_error);
        }
        parts.second.optimizer.zero_grad();
        EXPECT_EQ(parts.second.reducer->stats().syncs, 0);
        for (ToyModel* part : {&parts.first, &parts.second}) part->reducer->discard_accumulation();
        parts.pass(std::nullopt, 4);
        ToyModel::expect_gradient(parts.second.a, 4);
      },
      soon);
}

// After a scope that is not the last one, in which rank 0 has used the second part.
TEST(PartsInScopes, APlainPassOverOtherPartsLeavesAWindowOfScopesAlone) {
  run_thread_ranks(
      2,
      [](const Communicator& communicator) {
        Parts parts(communicator, with_policy(SyncPolicy::every_pass));
        {
          const auto scope = parts.accumulate(3, false);
          communicator.rank() == 0 ? parts.pass(std::nullopt, 8) : parts.pass(2, std::nullopt);
        }
        parts.first.optimizer.zero_grad();
        parts.pass(2, std::nullopt);
        parts.first.optimizer.step();
        parts.first.optimizer.zero_grad();
        const auto scope = parts.second.accumulate(1, true);
        parts.pass(std::nullopt, 8);
        ToyModel::expect_gradient(parts.second.a, (8 + 8 + 8) / 8.0F);
      },
      soon);
}

// A step has used the second part's gradient. The pass without synchronization adds to it on rank 0 only; the step in
// the scope takes the mean.
TEST(PartsInScopes, AGradientOfAnEndedWindowKeepsItsWeightWhereAPlainPassDoesNotReachThePart) {
  run_thread_ranks(
      2,
      [](const Communicator& communicator) {
        Parts parts(communicator, with_policy(SyncPolicy::manual));
        parts.pass(std::nullopt, 8);
        parts.second.optimizer.step();
        {
          const auto quiet = NoSyncScope({parts.first.reducer, parts.second.reducer});
          communicator.rank() == 0 ? parts.pass(std::nullopt, 2) : parts.pass(2, std::nullopt);
        }
        const auto scope = parts.accumulate(3, true);
        parts.second.optimizer.step();
        ToyModel::expect_gradient(parts.second.a, 9);
      },
      soon);
}

// The same where rank 1 leaves out the second pass of a scope, so that its gradient has no weight in the mean.
TEST(PartsInScopes, AGradientOfAnEndedWindowHasNoWeightOnARankThatLeavesOutAPass) {
  run_thread_ranks(
      2,
      [](const Communicator& communicator) {
        ToyModel model(communicator);
        const auto scope = model.accumulate(4, true);
        model.pass({.a = 32});
        model.optimizer.step();
        if (communicator.rank() == 0) model.pass({.a = 2});
        model.optimizer.step();
        ToyModel::expect_gradient(model.a, 8.5);
      },
      soon);
}

}  // namespace
}  // namespace tutti::test
