// A rank whose step was refused discards its window and so notifies its peers, which wait in the synchronization.
#include <gtest/gtest.h>

#include "support/process_case.h"
#include "sync/toy_model.h"
#include "tutti/core/error.h"

namespace tutti::test::one_sided_errors_test {
namespace {

enum class Call { step, synchronize };

/// The message of the call on each rank after only rank 1 has run `wrong`.
template <typename Wrong>
std::vector<std::string> messages_after(const Communicator& communicator, const Wrong& wrong, Call call) {
  ToyModel model(communicator, {.policy = SyncPolicy::automatic});
  for (int step = 0; step < 3; ++step) {  // the automatic policy learns that a step has two passes
    model.pass({.a = 1, .b = 1});
    model.pass({.a = 1, .b = 1});
    model.optimizer.step();
    model.optimizer.zero_grad();
  }
  model.pass({.a = 1, .b = 1});
  if (communicator.rank() == 1) wrong(model);
  std::string said;
  try {
    call == Call::step ? model.optimizer.step() : model.reducer->synchronize();
  } catch (const std::exception& error) {
    said = error.what();
  }
  // All ranks continue.
  model.a.requires_grad_(true);
  model.optimizer.zero_grad();
  model.pass({.a = 1, .b = 1});
  model.pass({.a = 1, .b = 1});
  model.optimizer.step();
  return communicator.all_gather_object(said);
}

/// All ranks throw `text`; those other than 1 as the reason of rank 1.
void expect_told(const std::vector<std::string>& said, const std::string& text) {
  for (std::size_t rank = 0; rank < said.size(); ++rank) {
    EXPECT_NE(said[rank].find(text), std::string::npos) << rank << said[rank];
    const bool told = said[rank].find("rank 1 aborted this step") != std::string::npos;
    EXPECT_EQ(told, rank != 1) << rank << said[rank];
  }
}

const ProcessCase a_changed_gradient("one-sided errors: a changed gradient", [](const Communicator& communicator) {
  const auto said = messages_after(
      communicator, [](ToyModel& model) { model.a.mutable_grad().mul_(2); }, Call::step);
  expect_told(said, "the gradient of 'a' was modified");
});
TEST(OneSidedErrors, AChangedGradient) {
  a_changed_gradient.on_threads({2, 3});
}

const ProcessCase a_frozen_parameter("one-sided errors: a frozen parameter", [](const Communicator& communicator) {
  for (const Call call : {Call::step, Call::synchronize}) {
    const auto said = messages_after(
        communicator, [](ToyModel& model) { model.a.requires_grad_(false); }, call);
    for (std::size_t rank = 0; rank < said.size(); ++rank) {
      EXPECT_NE(said[rank].find("it was frozen"), std::string::npos) << rank << said[rank];
    }
  }
});
TEST(OneSidedErrors, AFrozenParameter) {
  a_frozen_parameter.on_threads({2, 3});
}

// The gradient is refused when the other ranks have the header of the synchronization.
const ProcessCase a_sparse_gradient("one-sided errors: a sparse gradient", [](const Communicator& communicator) {
  const auto said = messages_after(
      communicator, [](ToyModel& model) { model.a.mutable_grad() = at::ones({3}).to_sparse(); }, Call::synchronize);
  expect_told(said, "parameter 'a'");
});
TEST(OneSidedErrors, ASparseGradientThatReplacesADenseOne) {
  a_sparse_gradient.on_threads({2, 3});
}

}  // namespace
}  // namespace tutti::test::one_sided_errors_test
