// If a rank fails or is at another step, the other ranks throw an error that names it, and no rank hangs.
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <future>
#include <stdexcept>

#include "local_sgd/local_run.h"
#include "support/ranks.h"
#include "tutti/core/error.h"

namespace tutti::test::failure_test {
namespace {

const LocalSgdAlgorithmOptions overlapped{.local_steps = 4, .streaming = {.overlap_steps = 3}};

/// Runs `action`, which must throw a PeerError that names `rank`.
template <typename Action>
void expect_failure_of(int rank, const Action& action) {
  try {
    action();
    ADD_FAILURE() << "nothing was thrown";
  } catch (const TimeoutError& error) {
    ADD_FAILURE() << "waited until the deadline: " << error.what();
  } catch (const PeerError& error) {
    EXPECT_EQ(error.ranks(), std::vector<int>{rank}) << error.what();
  }
}

TEST(Failure, AnExceptionBetweenStepsReachesTheOthersAsAnError) {
  for (const auto& updates : {LocalSgdAlgorithmOptions{.local_steps = 4}, overlapped,
                              LocalSgdAlgorithmOptions{.local_steps = 4, .wire = WireFormat::int8}}) {
    const auto body = [&](const Communicator& communicator) {
      LocalRun run(communicator, {.updates = updates});
      run.steps(2);
      if (communicator.rank() == 1) throw std::runtime_error("no more data");
      expect_failure_of(1, [&] { run.steps(5); });
      expect_failure_of(1, [&] { run.step(); });  // and every later call
      expect_failure_of(1, [&] { run.finish(); });
      EXPECT_THROW(run.algorithm->state_dict(), PeerError);
    };
    EXPECT_THROW(run_thread_ranks(3, body, {.timeout = std::chrono::seconds(60)}), std::runtime_error);
  }
}

TEST(Failure, ARankThatUnwindsDoesNotWaitForAnExchangeInFlight) {
  std::promise<void> left;
  std::shared_future<void> has_left = left.get_future();
  const auto body = [&](const Communicator& communicator) {
    if (communicator.rank() == 1) {
      try {
        LocalRun run(communicator, {.updates = overlapped});
        run.steps(4);
        throw std::runtime_error("in the overlap");
      } catch (const std::runtime_error&) {
        left.set_value();  // the algorithm is destroyed, although rank 0 has not begun its exchange
      }
      return;
    }
    LocalRun run(communicator, {.updates = overlapped});
    run.steps(3);
    has_left.wait();
    expect_failure_of(1, [&] { run.steps(4); });
  };
  run_thread_ranks(2, body, {.timeout = std::chrono::seconds(60)});
}

// The result is due after step 7. The next call reports the failure before that.
TEST(Failure, ABackgroundFailureSurfacesInTheNextCall) {
  std::promise<void> left;
  std::shared_future<void> has_left = left.get_future();
  const auto body = [&](const Communicator& communicator) {
    if (communicator.rank() == 1) {
      try {
        LocalRun run(communicator, {.updates = overlapped});
        run.steps(3);
        throw std::runtime_error("before the exchange");
      } catch (const std::runtime_error&) {
        left.set_value();
      }
      return;
    }
    LocalRun run(communicator, {.updates = overlapped});
    run.steps(3);
    has_left.wait();
    run.step();                                            // sends
    EXPECT_THROW(run.algorithm->state_dict(), PeerError);  // waits until the exchange has failed
    expect_failure_of(1, [&] { run.step(); });
    EXPECT_FALSE(communicator.failed());  // only the algorithm's communicator failed
  };
  run_thread_ranks(2, body, {.timeout = std::chrono::seconds(60)});
}

const RankProgram fails("local_sgd_fails", [] {
  const auto communicator = Communicator::connect(read_environment(), {.timeout = std::chrono::seconds(40)});
  LocalRun run(communicator, {.updates = {.local_steps = 4}});
  run.steps(6);
  if (communicator.rank() == 1) _exit(0);
  expect_failure_of(1, [&] { run.steps(2); });
});
TEST(Failure, AKilledProcessIsNamed) {
  expect_success(run_processes(fails, 2));
}

TEST(Failure, RanksAtDifferentStepsAreAMismatch) {
  run_thread_ranks(3, [](const Communicator& communicator) {
    LocalRun run(communicator, {.updates = {.local_steps = 4}});
    run.steps(3);
    if (communicator.rank() == 1) {
      EXPECT_THROW(run.finish(), MismatchError);
    } else {
      EXPECT_THROW(run.step(), MismatchError);
    }
    EXPECT_THROW(run.step(), MismatchError);
  });
  run_thread_ranks(2, [](const Communicator& communicator) {
    LocalRun run(communicator, {.updates = {.local_steps = 4}});
    run.steps(4 + communicator.rank());
    EXPECT_THROW(run.finish(), MismatchError);
  });
}

TEST(Failure, DifferentModelsOrOptionsAreAMismatch) {
  run_thread_ranks(2, [](const Communicator& communicator) {
    const at::Tensor parameter = at::zeros({3 + communicator.rank()}).set_requires_grad(true);
    EXPECT_THROW(LocalSgdAlgorithm({{"p", parameter}}, {}, nullptr, communicator.duplicate("models"), {}),
                 MismatchError);
    EXPECT_THROW(LocalRun(communicator, {.updates = {.local_steps = 4 + communicator.rank()}}), MismatchError);
    const double lr = communicator.rank() == 0 ? 0.7 : 0.5;
    try {
      LocalRun(communicator, {.updates = {.outer_optimizer = OuterOptimizer::diloco, .diloco = {.lr = lr}}});
      ADD_FAILURE() << "nothing was thrown";
    } catch (const MismatchError& error) {
      EXPECT_NE(std::string(error.what()).find("rank 0 has diloco.lr 0.7 where rank 1 has diloco.lr 0.5"),
                std::string::npos)
          << error.what();
    }
  });
}

TEST(Failure, AConvertedParameterIsNamed) {
  const at::Tensor parameter = at::zeros({3}).set_requires_grad(true);
  LocalSgdAlgorithm algorithm({{"weight", parameter}}, {}, nullptr, Communicator(), {.local_steps = 1});
  parameter.set_data(at::zeros({3}, at::kDouble));
  try {
    algorithm.step();
    ADD_FAILURE() << "nothing was thrown";
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("'weight'"), std::string::npos);
  }
}

TEST(Failure, TheDestructorWithoutFinishDoesNotCommunicate) {
  run_thread_ranks(2, [](const Communicator& communicator) {
    if (communicator.rank() == 0) {
      LocalRun run(communicator, {.updates = {.local_steps = 4}});
      run.steps(3);
    } else {
      LocalRun run(communicator, {.updates = {.local_steps = 4}});
    }
    LocalRun next(communicator, {.updates = {.local_steps = 1}});
    next.steps(1);
    EXPECT_TRUE(same_on_all_ranks(communicator, next.values()));
  });
}

}  // namespace
}  // namespace tutti::test::failure_test
