// Exceptions inside windows. In a backward pass that does not synchronize: the step that needs the gradients throws on
// all ranks. After the synchronization: the window is dropped.
#include <gtest/gtest.h>

#include <stdexcept>

#include "support/process_case.h"
#include "sync/loop.h"
#include "sync/segment.h"
#include "sync/toy_model.h"
#include "tutti/core/error.h"

namespace tutti::test::invalid_window_test {
namespace {

// The gradients of the previous step were kept, so the failing pass has added to one of them.
const ProcessCase added_to_kept_gradients("lost window: added to kept gradients", [](const Communicator& communicator) {
  ToyModel toy(communicator);
  toy.pass({.a = 1, .b = 1});
  toy.optimizer.step();
  {
    const auto quiet = NoSyncScope({toy.reducer});
    if (communicator.rank() == 0) {
      EXPECT_THROW(toy.pass({.b = 2, .explodes = true}), std::runtime_error);
    } else {
      toy.pass({.a = 2, .b = 2});
    }
  }
  EXPECT_THROW(toy.optimizer.step(), PeerError);
  toy.optimizer.zero_grad();
  toy.pass({.a = 4, .b = 4});
  toy.expect_gradient(toy.b, 4);
  toy.optimizer.step();
});
TEST(InvalidWindow, StepNotifiesAllRanksAlsoWhereGradientsWereCarriedOver) {
  added_to_kept_gradients.on_threads({1, 2, 3});
}

// Only nested passes reach the model before the exception, so no task of the outer pass can report it.
TEST(InvalidWindow, AnExceptionAfterANestedPassLeavesNothingBehind) {
  for (const int ranks : {1, 2, 3}) {
    run_thread_ranks(ranks, [](const Communicator& communicator) {
      const Stage stage(communicator, RunMode::scopes, SyncPolicy::every_pass);
      TwoLayers net(3, 5, 2, 1), one(3, 5, 2, 1);
      Trained model(stage, net.ptr());
      const auto loss_of = [](TwoLayers& layers, const at::Tensor& rows, bool explodes) {
        const at::Tensor x = rows.clone().requires_grad_();
        const at::Tensor sum = explodes ? Explosive::apply(x).sum() : at::zeros({}, at::kDouble);
        return sum + Segment::apply(x, layers->first).pow(2).mean();
      };
      const auto micro_batch = [&](bool explodes) {
        const auto scope = stage.micro_batch({&model});
        model.backward(loss_of(net, stage.rows(4, 3, 1), explodes));
      };
      EXPECT_THROW(micro_batch(true), std::runtime_error);
      EXPECT_NO_THROW(model.zero_grad());
      micro_batch(false);
      loss_of(one, Stage(communicator, RunMode::one_process, SyncPolicy::every_pass).rows(4, 3, 1), false).backward();
      EXPECT_TRUE(close(gradients_of(*net), gradients_of(*one), 1e-9));
    });
  }
}

// The program leaves the micro-batch out: the pass has notified the other ranks already.
const ProcessCase caught_in_the_scope("lost window: caught in the scope", [](const Communicator& communicator) {
  for (const bool is_only_scope : {true, false}) {
    ToyModel toy(communicator);
    if (!is_only_scope) {
      const auto scope = toy.accumulate(1, false);
      toy.pass({.a = 16});
    }
    {
      const auto scope = toy.accumulate(1, true);
      if (communicator.rank() == 0) {
        EXPECT_THROW(toy.pass({.b = 2, .explodes = true}), std::runtime_error);
      } else {
        EXPECT_THROW(toy.pass({.a = 2, .b = 2}), PeerError);
      }
      toy.optimizer.zero_grad();
    }
    const auto scope = toy.accumulate(1, true);
    toy.pass({.a = 4, .b = 4});
    toy.expect_gradient(toy.a, 4);
    toy.expect_gradient(toy.b, 4);
    toy.optimizer.step();
  }
});
TEST(InvalidWindow, AnExceptionThatIsCaughtInTheLastScopeDropsTheWindow) {
  caught_in_the_scope.on_threads({1, 2, 3});
}

TEST(InvalidWindow, AnExceptionAfterTheSynchronizationDropsTheWindow) {
  for (const bool is_only_scope : {true, false}) {
    for (const int ranks : {1, 2, 3}) {
      run_thread_ranks(ranks, [is_only_scope](const Communicator& communicator) {
        ToyModel toy(communicator);
        if (!is_only_scope) {
          const auto scope = toy.accumulate(1, false);
          toy.pass({.a = 16});
        }
        try {
          const auto scope = toy.accumulate(1, true);
          toy.pass({.a = 8});
          throw std::runtime_error("between backward and step");
        } catch (const std::runtime_error&) {
          EXPECT_FALSE(toy.a.grad().defined());
        }
        const auto scope = toy.accumulate(1, true);
        toy.pass({.a = 2});
        toy.expect_gradient(toy.a, 2);
        toy.optimizer.step();
      });
    }
  }
}

TEST(InvalidWindow, AnExceptionAfterTheStepKeepsItsGradients) {
  ToyModel toy{Communicator()};
  try {
    const auto scope = toy.accumulate(1, true);
    toy.pass({.a = 8});
    toy.optimizer.step();
    throw std::runtime_error("after the step");
  } catch (const std::runtime_error&) {
    toy.expect_gradient(toy.a, 8);
  }
}

}  // namespace
}  // namespace tutti::test::invalid_window_test
