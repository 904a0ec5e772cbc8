// Ranks: 2 and 3 as threads. What happens when one does not take part.
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <barrier>
#include <latch>

#include "tutti/comm/thread_ranks.h"
#include "tutti/core/error.h"
#include "tutti/detail/comm/pending.h"

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

TEST(ThreadFailures, ADeadlineNamesTheAbsent) {
  std::barrier both_come(2);
  std::latch both_failed(2);
  run_thread_ranks(3, [&](const Communicator& communicator) {
    if (communicator.rank() == 2) {
      both_failed.wait();
      return;
    }
    const CallOptions call{.timeout = milliseconds(2500), .name = "loss"};
    both_come.arrive_and_wait();  // so that neither is late
    const auto failure =
        failure_of<Timeout>([&] { communicator.all_reduce(at::ones({4}), ReduceOp::sum, call).wait(); });
    EXPECT_EQ(failure.ranks(), std::vector<int>{2});
    EXPECT_STREQ(failure.what(),
                 "all_reduce 'loss' (operation 0): rank 2 did not arrive within 2500 ms; ranks 0, 1 were waiting");
    both_failed.count_down();
  });
}

TEST(Work, IsCompletedWhenAllHaveCome) {
  std::latch looked(1);
  run_thread_ranks(2, [&](const Communicator& communicator) {
    if (communicator.rank() == 1) looked.wait();
    const Work work = communicator.barrier();
    if (communicator.rank() == 0) {
      EXPECT_FALSE(work.is_completed());
      looked.count_down();
    }
    work.wait();
    EXPECT_TRUE(work.is_completed());
  });
}

TEST(ThreadFailures, WhoComesTooLateIsToldSo) {
  std::latch failed(1);
  run_thread_ranks(2, [&](const Communicator& communicator) {
    if (communicator.rank() == 0) {
      EXPECT_THROW(communicator.barrier({.timeout = milliseconds(100), .name = ""}).wait(), Timeout);
      failed.count_down();
    } else {
      failed.wait();
      const auto failure = failure_of<PeerFailure>([&] { communicator.barrier().wait(); });
      EXPECT_EQ(failure.ranks(), std::vector<int>{1});
      EXPECT_NE(std::string(failure.what()).find("gave up waiting for this rank (1)"), std::string::npos);
    }
  });
}

TEST(ThreadFailures, ARankThatLeavesIsNamedToAll) {
  run_thread_ranks(3, [&](const Communicator& communicator) {
    if (communicator.rank() == 1) return;
    const auto failure = failure_of<PeerFailure>([&] { communicator.all_reduce(at::ones({4})).wait(); });
    EXPECT_EQ(failure.ranks(), std::vector<int>{1});
    EXPECT_NE(std::string(failure.what()).find("rank 1 is gone (connection closed)"), std::string::npos);
  });
}

// Exchanges go in rounds there: most wait for somebody who waits for it.
TEST(ThreadFailures, AmongManyTooTheOneThatLeavesIsNamed) {
  run_thread_ranks(11, [&](const Communicator& communicator) {
    if (communicator.rank() == 4) return;
    const auto failure = failure_of<PeerFailure>([&] { communicator.barrier().wait(); });
    EXPECT_EQ(failure.ranks(), std::vector<int>{4}) << failure.what();
  });
}

TEST(ThreadFailures, AmongManyTooTheOneThatDoesNotComeIsNamed) {
  std::barrier all_come(10);
  std::latch all_failed(10);
  run_thread_ranks(11, [&](const Communicator& communicator) {
    if (communicator.rank() == 4) {
      all_failed.wait();
      return;
    }
    all_come.arrive_and_wait();  // so that nobody is late
    const CallOptions call{.timeout = milliseconds(2500), .name = "end"};
    const auto failure = failure_of<Timeout>([&] { communicator.barrier(call).wait(); });
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
    auto pending = communicator.start_sum(at::ones({100'000}));
    auto exchange = communicator.start_exchange(std::vector<std::byte>(8));
    const auto queued =
        communicator.all_reduce(at::ones({4}), ReduceOp::sum, {.timeout = milliseconds(100), .name = ""});
    const auto behind = communicator.all_reduce(at::ones({4}));
    EXPECT_THROW(queued.wait(), Timeout);
    EXPECT_THROW(behind.wait(), PeerFailure);
    EXPECT_TRUE(communicator.poisoned());
    for (int i = 0; i < 2; ++i) {
      const auto failure = failure_of<PeerFailure>([&] { communicator.barrier().wait(); });
      EXPECT_EQ(failure.ranks(), std::vector<int>{1});
      EXPECT_NE(std::string(failure.what()).find("rank 1 did not arrive within 100 ms"), std::string::npos);
    }
    EXPECT_THROW(pending->reduce(1), PeerFailure);
    EXPECT_THROW(exchange->finish(), PeerFailure);
    EXPECT_THROW(communicator.start_sum(at::ones({4})), PeerFailure);
    EXPECT_THROW(queued.wait(), Timeout);  // a Work keeps its own cause
    failed.count_down();
  });
}

TEST(ThreadFailures, AnAbandonedSumIsNamedToAll) {
  run_thread_ranks(2, [&](const Communicator& communicator) {
    auto pending = communicator.start_sum(at::ones({1000}));
    if (communicator.rank() == 1) {
      pending.reset();
      EXPECT_TRUE(communicator.poisoned());
      return;
    }
    const auto failure = failure_of<PeerFailure>([&] {
      pending->reduce(1);
      pending->finish();
    });
    EXPECT_EQ(failure.ranks(), std::vector<int>{1});
    EXPECT_NE(std::string(failure.what()).find("rank 1 abandoned gradient sum"), std::string::npos) << failure.what();
  });
}

TEST(ThreadFailures, WhoeverWaitsForAMessageHearsOfAnAbortAndMayUseTheGroup) {
  std::latch heard(1);
  run_thread_ranks(2, [&](const Communicator& communicator) {
    if (communicator.rank() == 1) {
      heard.wait();
      return;
    }
    const Work receive = communicator.receive(at::ones({4}), 1);
    std::string on_the_way;
    receive.then([&] {
      on_the_way = failure_of<PeerFailure>([&] { communicator.barrier().wait(); }).what();
      heard.count_down();
    });
    communicator.abort("enough");
    heard.wait();
    EXPECT_NE(on_the_way.find("enough"), std::string::npos) << on_the_way;
    EXPECT_NE(std::string(failure_of<PeerFailure>([&] { receive.wait(); }).what()).find("enough"), std::string::npos);
  });
}

TEST(ThreadFailures, AMessagesEndMaySendTheNextOne) {
  run_thread_ranks(2, [&](const Communicator& communicator) {
    const int other = 1 - communicator.rank();
    auto came = at::ones({4});
    auto back = at::ones({4});
    std::latch sent(1);
    Work answer;
    const Work receive = communicator.receive_from_any(came, 0, [&](int source) {
      answer = communicator.send(came, source, 1);
      sent.count_down();
    });
    communicator.send(at::full({4}, communicator.rank(), at::kFloat), other, 0).wait();
    receive.wait();
    communicator.receive(back, other, 1).wait();
    sent.wait();
    answer.wait();
    EXPECT_TRUE(at::equal(back, at::full({4}, communicator.rank(), at::kFloat)));
  });
}

TEST(ThreadFailures, AnExceptionDoesNotWaitForOthers) {
  std::latch gone(1);
  const auto run = [&] {
    run_thread_ranks(2, [&](Communicator communicator) {
      if (communicator.rank() == 0) {
        const auto copy = communicator.duplicate("copy");
        copy.all_reduce(at::ones({4}));  // rank 1 never calls it
        throw UsageError("leaving");
      }
      const auto copy = communicator.duplicate("copy");
      EXPECT_THROW(communicator.barrier().wait(), PeerFailure);
      gone.count_down();
      throw PeerFailure("second", {0});
    });
  };
  EXPECT_THROW(run(), UsageError);
  gone.wait();
}

TEST(ThreadFailures, RanksMustFillTheNodes) {
  EXPECT_THROW(make_thread_communicators(3, {}, 2), UsageError);
  EXPECT_THROW(make_thread_communicators(0), UsageError);
  const auto communicators = make_thread_communicators(4, {}, 2);
  EXPECT_EQ(communicators[3].layout().node_rank, 1);
  EXPECT_EQ(communicators[3].layout().local_rank, 1);
  EXPECT_EQ(communicators[3].layout().local_size, 2);
}

}  // namespace
}  // namespace tutti::thread_failures_test
