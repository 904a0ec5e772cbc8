// A rank whose step was refused, and that gives its window up, tells the others, which wait for it in the round.
#include <gtest/gtest.h>

#include "support/ranks.h"
#include "sync/toy_model.h"
#include "tutti/core/error.h"

namespace tutti::test::one_sided_errors_test {
namespace {

/// What step() says on `rank` when only rank 1 has done `wrong` before.
template <typename Wrong>
std::vector<std::string> step_after(int ranks, const ReducerOptions& options, const Wrong& wrong) {
  std::vector<std::string> said(static_cast<std::size_t>(ranks));
  run_thread_ranks(ranks,
                   [&](const Communicator& communicator) {
                     ToyModel model(communicator, options);
                     for (int step = 0; step < 3; ++step) {  // the automatic policy learns that a step has two passes
                       model.pass({.a = 1, .b = 1});
                       model.pass({.a = 1, .b = 1});
                       model.optimizer.step();
                       model.optimizer.zero_grad();
                     }
                     model.pass({.a = 1, .b = 1});
                     if (communicator.rank() == 1) wrong(model);
                     try {
                       model.optimizer.step();
                     } catch (const std::exception& error) {
                       said[static_cast<std::size_t>(communicator.rank())] = error.what();
                     }
                     // All go on together.
                     model.a.requires_grad_(true);
                     model.optimizer.zero_grad();
                     model.pass({.a = 1, .b = 1});
                     model.pass({.a = 1, .b = 1});
                     model.optimizer.step();
                   },
                   {.timeout = std::chrono::seconds(30)});
  return said;
}

class OneSidedErrors : public testing::TestWithParam<int> {};  // the number of ranks

TEST_P(OneSidedErrors, AChangedGradient) {
  const auto said = step_after(GetParam(), {.policy = SyncPolicy::automatic},
                               [](ToyModel& model) { model.a.mutable_grad().mul_(2); });
  for (std::size_t rank = 0; rank < said.size(); ++rank) {
    EXPECT_NE(said[rank].find("the gradient of 'a' was changed by hand"), std::string::npos) << rank << said[rank];
    const bool told = said[rank].find("rank 1 abandoned") != std::string::npos;
    EXPECT_EQ(told, rank != 1) << rank << said[rank];
  }
}

TEST_P(OneSidedErrors, AFrozenParameter) {
  const auto said =
      step_after(GetParam(), {.policy = SyncPolicy::automatic}, [](ToyModel& model) { model.a.requires_grad_(false); });
  for (std::size_t rank = 0; rank < said.size(); ++rank) {
    EXPECT_NE(said[rank].find("it was frozen"), std::string::npos) << rank << said[rank];
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, OneSidedErrors, testing::Values(2, 3));

}  // namespace
}  // namespace tutti::test::one_sided_errors_test
