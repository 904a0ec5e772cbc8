// Calls that are made on some ranks only. Ranks: 2 processes over shared memory, 3 over Gloo.
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <thread>

#include "support/ranks.h"
#include "tutti/comm/communicator.h"
#include "tutti/core/error.h"

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

void on_both_backends(const RankProgram& program) {
  expect_success(run_processes(program, 2));
  expect_success(run_processes(program, 3, {.variables = {{"TUTTI_BACKEND", "gloo"}}}));
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

}  // namespace
}  // namespace tutti::test::deadlock_test
