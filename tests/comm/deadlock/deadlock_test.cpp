// Calls that are made on some ranks only. Ranks: 2 processes over shared memory, 3 over TCP.
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <future>
#include <map>
#include <string>
#include <thread>

#include "support/ranks.h"
#include "tutti/comm/communicator.h"
#include "tutti/core/error.h"
#include "tutti/detail/comm/gradient_communicator.h"

namespace tutti::test::deadlock_test {
namespace {

using namespace std::chrono_literals;

Communicator connect() {
  // Longer than the time limit of the test, so that no operation can time out.
  return Communicator::connect(read_environment(), {.timeout = 30min});
}

constexpr int line_of_call = __LINE__ + 3;
std::string error_of(const Communicator& communicator, const std::string& name) {
  try {
    communicator.barrier({.name = name}).wait();
  } catch (const MismatchError& error) {
    return error.what();
  }
  return "nothing";
}

void expect_in(const std::string& part, const std::string& text) {
  EXPECT_NE(text.find(part), std::string::npos) << text;
}

#if defined(__SANITIZE_THREAD__)
constexpr bool has_sanitizer_thread = true;  // it uses CPU time all the time, so no deadlock is certain
#else
constexpr bool has_sanitizer_thread = false;
#endif

void on_both_backends(const RankProgram& program) {
  expect_success(run_processes(program, 2));
  expect_success(run_processes(program, 3, {.variables = {{"TUTTI_BACKEND", "tcp"}}}));
}

const RankProgram different_communicators("deadlock_different_communicators", [] {
  const Communicator job = connect();
  const Communicator other = job.duplicate("other");
  for (int times = 0; times < 3; ++times) job.barrier().wait();
  std::thread([&] { job.barrier().wait(); }).join();  // a thread that has exited does not count as running
  const bool first = job.rank() == 0;
  const std::string text = first ? error_of(other, "saving") : error_of(job, "training");
  expect_in("called on some ranks only", text);
  const std::string place = "deadlock_test.cpp:" + std::to_string(line_of_call);
  expect_in("rank 0 waits in barrier 'saving' (operation 0, " + place + ") of 'job/0-other', which rank", text);
  expect_in("in barrier 'training' (operation ", text);
  expect_in(", " + place + ") of 'job', which rank 0 has not called", text);
  // Later calls throw the same error.
  EXPECT_EQ(error_of(first ? other : job, "again"), text);
});

TEST(Deadlock, CallsOnDifferentCommunicatorsThrowOnAllRanks) {
  if (has_sanitizer_thread) GTEST_SKIP();
  on_both_backends(different_communicators);
}

// The caller waits for a call that the communicator's queue thread runs.
const RankProgram left_to_a_thread("deadlock_left_to_a_thread", [] {
  const Communicator job = connect();
  const Communicator other = job.duplicate("other");
  const Communicator& waiting_on = job.rank() == 0 ? other : job;
  const at::Tensor large = at::ones({1 << 20});
  const Work first = waiting_on.all_reduce(large);
  const Work second = waiting_on.all_reduce(large);
  EXPECT_THROW(second.wait(), MismatchError);
  EXPECT_THROW(first.wait(), MismatchError);
});

TEST(Deadlock, WaitingForAnInFlightCallCountsAsBlocked) {
  if (has_sanitizer_thread) GTEST_SKIP();
  on_both_backends(left_to_a_thread);
}

// Rank 0 makes the calls from two threads, the other ranks make them from one.
const RankProgram another_thread_calls("deadlock_another_thread_calls", [] {
  const Communicator job = connect();
  const Communicator other = job.duplicate("other");
  if (job.rank() != 0) {
    job.barrier().wait();
    other.barrier().wait();
    job.barrier().wait();
    return;
  }
  std::promise<void> entered;
  std::thread late([&] {
    other.barrier().wait();
    entered.set_value();
  });
  job.barrier().wait();
  entered.get_future().wait();
  late.join();
  job.barrier().wait();
});

TEST(Deadlock, AlternatingThreadsAreNoDeadlock) {
  on_both_backends(another_thread_calls);
}

// The main threads are blocked for long, but another thread of rank 0 will make the call that rank 1 waits for.
const RankProgram another_thread_is_running("deadlock_another_thread_is_running", [] {
  const Communicator job = connect();
  const Communicator other = job.duplicate("other");
  std::promise<void> entered;
  std::promise<void> may_go_on;
  std::thread late;
  if (job.rank() == 0) {
    late = std::thread([&] {
      other.barrier().wait();
      entered.set_value();
      may_go_on.get_future().wait();
      other.barrier().wait();
    });
    entered.get_future().wait();
    // Longer than it takes to detect a deadlock.
    std::thread([&] {
      std::this_thread::sleep_for(3s);
      may_go_on.set_value();
    }).detach();
    job.barrier().wait();
    late.join();
  } else {
    other.barrier().wait();
    other.barrier().wait();
    job.barrier().wait();
  }
});

TEST(Deadlock, AThreadThatMayStillCallIsNoDeadlock) {
  expect_success(run_processes(another_thread_is_running, 2));
}

// Longer than it takes to detect a deadlock in `soon`.
constexpr auto detection_time = 4s;
const ProcessOptions soon{.variables = {{"TUTTI_DEADLOCK_TIMEOUT", "1"}}};

void compute() {
  const auto end = std::chrono::steady_clock::now() + detection_time;
  while (std::chrono::steady_clock::now() < end) {
  }
}

struct Groups {
  Communicator job = connect();
  Communicator other = job.duplicate("other");
  Communicator tasks = job.duplicate("tasks");
};

void two_barriers(const Communicator& communicator) {
  communicator.barrier().wait();
  communicator.barrier().wait();
}

// Rank 1 waits in two calls on `other`, and rank 0 in a call on `job`. `start_calls` of rank 0 has started what makes
// the calls on `other` later. `before_waiting` runs on rank 1.
void wait_for_later_calls(
    const std::function<void(const Groups&)>& start_calls,
    const std::function<void(const Groups&)>& before_waiting = [](const Groups&) {}) {
  const Groups groups;
  if (groups.job.rank() == 0) {
    start_calls(groups);
  } else {
    before_waiting(groups);
    two_barriers(groups.other);
  }
  two_barriers(groups.job);
}

// The thread has not made a call before, so the detector does not know it.
const RankProgram first_call_of_a_thread("deadlock_first_call_of_a_thread", [] {
  std::thread late;
  wait_for_later_calls([&](const Groups& groups) {
    late = std::thread([other = groups.other] {
      compute();
      two_barriers(other);
    });
  });
  if (late.joinable()) late.join();
});

TEST(Deadlock, AThreadThatComputesBeforeItsFirstCallIsNoDeadlock) {
  expect_success(run_processes(first_call_of_a_thread, 2, soon));
}

// A queue thread runs the task. It sleeps, so it uses no CPU time.
const RankProgram submitted_task("deadlock_submitted_task", [] {
  wait_for_later_calls([](const Groups& groups) {
    (void)comm::GradientCommunicator(groups.tasks).submit([other = groups.other] {
      std::this_thread::sleep_for(detection_time);
      two_barriers(other);
    });
  });
});

TEST(Deadlock, ASubmittedTaskIsNoDeadlock) {
  expect_success(run_processes(submitted_task, 2, soon));
}

// The message releases rank 1 after rank 0 has called, so that the queue thread completes the call of rank 0.
const RankProgram continuation("deadlock_continuation", [] {
  const at::Tensor message = at::ones({1});
  wait_for_later_calls(
      [&](const Groups& groups) {
        groups.other.barrier().then([other = groups.other] {
          std::this_thread::sleep_for(detection_time);
          (void)other.barrier();
        });
        groups.job.send(message, 1).wait();
      },
      [&](const Groups& groups) { groups.job.receive(message, 0).wait(); });
});

TEST(Deadlock, AContinuationIsNoDeadlock) {
  expect_success(run_processes(continuation, 2, soon));
}

// The thread that moves messages runs the continuation.
const RankProgram continuation_of_a_message("deadlock_continuation_of_a_message", [] {
  const at::Tensor message = at::ones({1});
  wait_for_later_calls(
      [&](const Groups& groups) {
        const Work received = groups.job.receive(message, 1);
        received.then([other = groups.other] {
          std::this_thread::sleep_for(detection_time);
          two_barriers(other);
        });
        groups.job.send(at::ones({1}), 1).wait();
      },
      [&](const Groups& groups) {
        groups.job.receive(message, 0).wait();
        groups.job.send(message, 0).wait();
      });
});

TEST(Deadlock, AContinuationOfAMessageIsNoDeadlock) {
  expect_success(run_processes(continuation_of_a_message, 2, soon));
}

const RankProgram never("deadlock_never", [] {
  const Communicator job = connect();
  const Communicator other = job.duplicate("other");
  (void)error_of(job.rank() == 0 ? other : job, job.rank() == 0 ? "saving" : "training");
});

TEST(Deadlock, IsLoggedBeforeItIsAnError) {
  for (const auto& [timeout, end] : std::map<std::string, std::string>{
           {"0", "the calls time out."}, {"3600", "all ranks throw MismatchError after 3600 s."}}) {
    RankProcesses ranks(never, 2, {.variables = {{"TUTTI_DEADLOCK_TIMEOUT", timeout}}});
    const std::string place = "deadlock_test.cpp:" + std::to_string(line_of_call);
    EXPECT_TRUE(ranks.wait_for_output(
        0,
        "no rank has made progress for 2 s: called on some ranks only: rank 0 waits in barrier 'saving' (operation "
        "0, " +
            place + ") of 'job/0-other', which rank 1 has not called; rank 1 waits in barrier 'training' (operation "));
    EXPECT_TRUE(ranks.wait_for_output(0, end));
  }
}

}  // namespace
}  // namespace tutti::test::deadlock_test
