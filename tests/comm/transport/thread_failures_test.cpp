// Ranks: 2, 3 and 11 as threads. Errors of calls that a rank does not enter.
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <barrier>
#include <latch>

#include "tutti/comm/thread_ranks.h"
#include "tutti/core/error.h"
#include "tutti/detail/comm/gradient_communicator.h"

namespace tutti::thread_failures_test {
namespace {

using std::chrono::milliseconds;

// The exception of type Failure that `work` ends with.
template <typename Failure, typename Body>
Failure failure_of(const Body& body) {
  try {
    body();
  } catch (const Failure& failure) {
    return failure;
  }
  throw std::logic_error("nothing was thrown");
}

TEST(ThreadFailures, ADeadlineNamesTheAbsentRank) {
  std::barrier both_entered(2);
  std::latch both_failed(2);
  run_thread_ranks(3, [&](const Communicator& communicator) {
    if (communicator.rank() == 2) {
      both_failed.wait();
      return;
    }
    const CallOptions call{.timeout = milliseconds(2500), .name = "loss"};
    both_entered.arrive_and_wait();  // so that ranks 0 and 1 are not late
    const auto failure =
        failure_of<TimeoutError>([&] { communicator.all_reduce(at::ones({4}), ReduceOp::sum, call).wait(); });
    EXPECT_EQ(failure.ranks(), std::vector<int>{2});
    EXPECT_STREQ(failure.what(),
                 "all_reduce 'loss' (operation 0): rank 2 did not enter the call within 2500 ms; ranks 0, 1 were "
                 "waiting");
    both_failed.count_down();
  });
}

TEST(Work, IsCompletedWhenAllRanksHaveEntered) {
  std::latch checked(1);
  run_thread_ranks(2, [&](const Communicator& communicator) {
    if (communicator.rank() == 1) checked.wait();
    const Work work = communicator.barrier();
    if (communicator.rank() == 0) {
      EXPECT_FALSE(work.is_completed());
      checked.count_down();
    }
    work.wait();
    EXPECT_TRUE(work.is_completed());
  });
}

TEST(ThreadFailures, ALateRankGetsAnError) {
  std::latch failed(1);
  run_thread_ranks(2, [&](const Communicator& communicator) {
    if (communicator.rank() == 0) {
      EXPECT_THROW(communicator.barrier({.timeout = milliseconds(100), .name = ""}).wait(), TimeoutError);
      failed.count_down();
    } else {
      failed.wait();
      const auto failure = failure_of<PeerError>([&] { communicator.barrier().wait(); });
      EXPECT_EQ(failure.ranks(), std::vector<int>{1});
      EXPECT_NE(std::string(failure.what()).find("timed out waiting for this rank (1)"), std::string::npos);
    }
  });
}

TEST(ThreadFailures, AllRanksNameARankThatLeaves) {
  run_thread_ranks(3, [&](const Communicator& communicator) {
    if (communicator.rank() == 1) return;
    const auto failure = failure_of<PeerError>([&] { communicator.all_reduce(at::ones({4})).wait(); });
    EXPECT_EQ(failure.ranks(), std::vector<int>{1});
    EXPECT_NE(std::string(failure.what()).find("rank 1 disconnected (connection closed)"), std::string::npos);
  });
}

// With 11 ranks small all-gathers run in several steps: most ranks wait for a rank that waits for the late rank.
TEST(ThreadFailures, AmongManyRanksTheLeavingRankIsNamed) {
  run_thread_ranks(11, [&](const Communicator& communicator) {
    if (communicator.rank() == 4) return;
    const auto failure = failure_of<PeerError>([&] { communicator.barrier().wait(); });
    EXPECT_EQ(failure.ranks(), std::vector<int>{4}) << failure.what();
  });
}

TEST(ThreadFailures, AmongManyRanksTheAbsentRankIsNamed) {
  std::barrier all_entered(10);
  std::latch all_failed(10);
  run_thread_ranks(11, [&](const Communicator& communicator) {
    if (communicator.rank() == 4) {
      all_failed.wait();
      return;
    }
    all_entered.arrive_and_wait();  // so that no rank is late
    const CallOptions call{.timeout = milliseconds(2500), .name = "end"};
    const auto failure = failure_of<TimeoutError>([&] { communicator.barrier(call).wait(); });
    EXPECT_EQ(failure.ranks(), std::vector<int>{4}) << failure.what();
    all_failed.count_down();
  });
}

TEST(ThreadFailures, AFailureOfOneRankIsTheFailureOfTheRun) {
  const auto run = [] {
    run_thread_ranks(3, [&](const Communicator& communicator) {
      if (communicator.rank() == 1) throw UsageError("rank 1's own mistake");
      communicator.barrier().wait();
    });
  };
  EXPECT_STREQ(failure_of<UsageError>(run).what(), "rank 1's own mistake");
}

TEST(ThreadFailures, AfterAFailureNothingIsStarted) {
  std::latch failed(1);
  run_thread_ranks(2, [&](const Communicator& communicator) {
    if (communicator.rank() == 1) {
      failed.wait();
      return;
    }
    auto pending = comm::GradientCommunicator(communicator).start_all_reduce(at::ones({100'000}));
    auto exchange = comm::GradientCommunicator(communicator).start_small_all_gather(std::vector<std::byte>(8));
    const auto queued =
        communicator.all_reduce(at::ones({4}), ReduceOp::sum, {.timeout = milliseconds(100), .name = ""});
    const auto behind = communicator.all_reduce(at::ones({4}));
    EXPECT_THROW(queued.wait(), TimeoutError);
    EXPECT_THROW(behind.wait(), PeerError);
    EXPECT_TRUE(communicator.failed());
    for (int i = 0; i < 2; ++i) {
      const auto failure = failure_of<PeerError>([&] { communicator.barrier().wait(); });
      EXPECT_EQ(failure.ranks(), std::vector<int>{1});
      EXPECT_NE(std::string(failure.what()).find("rank 1 did not enter the call within 100 ms"), std::string::npos);
    }
    EXPECT_THROW(pending->finish_reduce_scatter(1), PeerError);
    EXPECT_THROW(exchange->wait(), PeerError);
    EXPECT_THROW(comm::GradientCommunicator(communicator).start_all_reduce(at::ones({4})), PeerError);
    EXPECT_THROW(queued.wait(), TimeoutError);  // a Work keeps its own cause
    failed.count_down();
  });
}

TEST(ThreadFailures, AllRanksNameTheRankThatAbandonsASum) {
  run_thread_ranks(2, [&](const Communicator& communicator) {
    auto pending = comm::GradientCommunicator(communicator).start_all_reduce(at::ones({1000}));
    if (communicator.rank() == 1) {
      pending.reset();
      EXPECT_TRUE(communicator.failed());
      return;
    }
    const auto failure = failure_of<PeerError>([&] {
      pending->finish_reduce_scatter(1);
      pending->wait();
    });
    EXPECT_EQ(failure.ranks(), std::vector<int>{1});
    EXPECT_NE(std::string(failure.what()).find("rank 1 aborted gradient sum"), std::string::npos) << failure.what();
  });
}

TEST(ThreadFailures, AnAbortEndsAPendingReceiveWhoseCallbackMayUseTheGroup) {
  std::latch notified(1);
  run_thread_ranks(2, [&](const Communicator& communicator) {
    if (communicator.rank() == 1) {
      notified.wait();
      return;
    }
    const Work receive = communicator.receive(at::ones({4}), 1);
    std::string error_in_callback;
    receive.then([&] {
      error_in_callback = failure_of<PeerError>([&] { communicator.barrier().wait(); }).what();
      notified.count_down();
    });
    communicator.abort("enough");
    notified.wait();
    EXPECT_NE(error_in_callback.find("enough"), std::string::npos) << error_in_callback;
    EXPECT_NE(std::string(failure_of<PeerError>([&] { receive.wait(); }).what()).find("enough"), std::string::npos);
  });
}

TEST(ThreadFailures, ACompletionCallbackMaySendTheNextMessage) {
  run_thread_ranks(2, [&](const Communicator& communicator) {
    const int other = 1 - communicator.rank();
    auto received = at::ones({4});
    auto returned = at::ones({4});
    std::latch sent(1);
    Work answer;
    const Work receive = communicator.receive_from_any(received, 0, [&](int source) {
      answer = communicator.send(received, source, 1);
      sent.count_down();
    });
    communicator.send(at::full({4}, communicator.rank(), at::kFloat), other, 0).wait();
    receive.wait();
    communicator.receive(returned, other, 1).wait();
    sent.wait();
    answer.wait();
    EXPECT_TRUE(at::equal(returned, at::full({4}, communicator.rank(), at::kFloat)));
  });
}

TEST(ThreadFailures, AnExceptionDoesNotWaitForOtherRanks) {
  std::latch disconnected(1);
  const auto run = [&] {
    run_thread_ranks(2, [&](Communicator communicator) {
      if (communicator.rank() == 0) {
        const auto copy = communicator.duplicate("copy");
        copy.all_reduce(at::ones({4}));  // rank 1 never calls it
        throw UsageError("leaving");
      }
      const auto copy = communicator.duplicate("copy");
      EXPECT_THROW(communicator.barrier().wait(), PeerError);
      disconnected.count_down();
      throw PeerError("second", {0});
    });
  };
  EXPECT_THROW(run(), UsageError);
  disconnected.wait();
}

TEST(ThreadFailures, RanksMustFillTheNodes) {
  EXPECT_THROW(make_thread_communicators(3, {}, 2), UsageError);
  EXPECT_THROW(make_thread_communicators(0), UsageError);
  const auto communicators = make_thread_communicators(4, {}, 2);
  EXPECT_EQ(communicators[3].topology().node_rank, 1);
  EXPECT_EQ(communicators[3].topology().local_rank, 1);
  EXPECT_EQ(communicators[3].topology().local_world_size, 2);
}

TEST(ThreadFailures, EncryptionWithoutASecretIsAUsageError) {
  EXPECT_THROW(make_thread_communicators(2, {.encryption = true}), UsageError);
}

TEST(ThreadFailures, AnUnknownBackendIsAUsageError) {
  EXPECT_THROW(make_thread_communicators(2, {.backend = "shared-memory"}), UsageError);
  EXPECT_THROW(make_thread_communicators(2, {.backend = "staged:shared-memory"}), UsageError);
}

}  // namespace
}  // namespace tutti::thread_failures_test
