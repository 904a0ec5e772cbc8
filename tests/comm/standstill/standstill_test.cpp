// Calls that were made on some ranks only. Ranks: 2 processes over shared memory, 3 over Gloo.
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <thread>

#include "support/ranks.h"
#include "tutti/comm/communicator.h"
#include "tutti/core/error.h"

namespace tutti::test::standstill_test {
namespace {

using namespace std::chrono_literals;

Communicator connect() {
  // So late that the tests' deadline would come first.
  return Communicator::connect(read_environment(), {.timeout = 30min});
}

constexpr int line_of_told = __LINE__ + 3;
std::string told(const Communicator& communicator, const std::string& name) {
  try {
    communicator.barrier({.name = name}).wait();
  } catch (const Divergence& error) {
    return error.what();
  }
  return "nothing";
}

void expect_in(const std::string& part, const std::string& text) {
  EXPECT_NE(text.find(part), std::string::npos) << text;
}

void on_both_engines(const RankProgram& program) {
  expect_success(run_processes(program, 2));
  expect_success(run_processes(program, 3, {.variables = {{"TUTTI_ENGINE", "gloo"}}}));
}

const RankProgram different_channels("standstill_different_channels", [] {
  const Communicator job = connect();
  const Communicator other = job.duplicate("other");
  for (int times = 0; times < 3; ++times) job.barrier().wait();
  std::thread([&] { job.barrier().wait(); }).join();  // nobody waits for what it may call
  const bool first = job.rank() == 0;
  const std::string text = first ? told(other, "saving") : told(job, "training");
  expect_in("called on some ranks only", text);
  const std::string place = "standstill_test.cpp:" + std::to_string(line_of_told);
  expect_in("rank 0 waits in barrier 'saving' (operation 0, " + place + ") of 'job/0-other', which rank", text);
  expect_in("in barrier 'training' (operation ", text);
  expect_in(", " + place + ") of 'job', which rank 0 has not called", text);
  // It stays so.
  EXPECT_EQ(told(first ? other : job, "again"), text);
});

TEST(Standstill, CallsOnDifferentChannelsAreToldToAllRanks) {
  on_both_engines(different_channels);
}

// The caller waits for what it has left to the channel's own thread.
const RankProgram left_to_a_thread("standstill_left_to_a_thread", [] {
  const Communicator job = connect();
  const Communicator other = job.duplicate("other");
  const Communicator& mine = job.rank() == 0 ? other : job;
  const at::Tensor large = at::ones({1 << 20});
  const Work first = mine.all_reduce(large);
  const Work second = mine.all_reduce(large);
  EXPECT_THROW(second.wait(), Divergence);
  EXPECT_THROW(first.wait(), Divergence);
});

TEST(Standstill, WaitingForACallUnderWayIsWaitingToo) {
  on_both_engines(left_to_a_thread);
}

// Rank 0 calls from two threads what the others call from one.
const RankProgram another_thread_comes("standstill_another_thread_comes", [] {
  const Communicator job = connect();
  const Communicator other = job.duplicate("other");
  if (job.rank() != 0) {
    job.barrier().wait();
    other.barrier().wait();
    job.barrier().wait();
    return;
  }
  std::promise<void> known;
  std::thread late([&] {
    other.barrier().wait();
    known.set_value();
  });
  job.barrier().wait();
  known.get_future().wait();
  late.join();
  job.barrier().wait();
});

TEST(Standstill, ThreadsThatTakeTurnsAreNone) {
  on_both_engines(another_thread_comes);
}

// Main threads stand still for long, and yet another thread of rank 0 will make the call that rank 1 waits for.
const RankProgram is_elsewhere("standstill_is_elsewhere", [] {
  const Communicator job = connect();
  const Communicator other = job.duplicate("other");
  std::promise<void> known;
  std::promise<void> may_go_on;
  std::thread late;
  if (job.rank() == 0) {
    late = std::thread([&] {
      other.barrier().wait();
      known.set_value();
      may_go_on.get_future().wait();
      other.barrier().wait();
    });
    known.get_future().wait();
    // Longer than it takes to find out that ranks stand still.
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

TEST(Standstill, AThreadThatMayStillCallIsWaitedFor) {
  expect_success(run_processes(is_elsewhere, 2));
}

}  // namespace
}  // namespace tutti::test::standstill_test
