// Exceptions in backward passes that do not synchronize: the other ranks learn of them when the step needs the
// gradients.
#include <gtest/gtest.h>

#include "support/process_case.h"
#include "sync/toy_model.h"
#include "tutti/core/error.h"

namespace tutti::test::lost_window_test {
namespace {

// The gradients of the step before were kept, so the failing pass has added to one of them.
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
  EXPECT_THROW(toy.optimizer.step(), PeerFailure);
  toy.optimizer.zero_grad();
  toy.pass({.a = 4, .b = 4});
  toy.expect_gradient(toy.b, 4);
  toy.optimizer.step();
});
TEST(LostWindow, StepTellsAllRanksAlsoWhereGradientsWereKept) {
  added_to_kept_gradients.on_threads({1, 2, 3});
}

}  // namespace
}  // namespace tutti::test::lost_window_test
