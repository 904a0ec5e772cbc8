// All-reduces through shared memory. Ranks: 2 to 5 processes. Also the parts of the backend, on threads.
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <future>
#include <iostream>
#include <span>
#include <thread>

#include "comm/shm/node_state.h"
#include "comm/shm/segment.h"
#include "comm/shm/sequence_counter.h"
#include "support/rank_case.h"
#include "support/temporary_folder.h"
#include "support/training.h"
#include "tutti/core/error.h"
#include "tutti/detail/comm/gradient_communicator.h"

namespace tutti::comm::shared_memory_test {
namespace {

using test::random_tensor;
using test::RankProgram;
using test::run_processes;

Communicator connect(const std::string& backend, std::chrono::milliseconds timeout = std::chrono::seconds(30)) {
  return Communicator::connect(read_environment(), {.backend = backend, .timeout = timeout});
}

/// A tensor of `elements` in memory from Communicator::allocate().
at::Tensor gradients(const Communicator& communicator, std::int64_t elements, at::ScalarType dtype) {
  const auto width = static_cast<std::int64_t>(c10::elementSize(dtype));
  return GradientCommunicator(communicator).allocate(elements * width).view(dtype);
}

// Rank 0 starts as many all-gathers as there are slots, and one more, before it waits for the first.
const RankProgram gathers_ahead("shm_gathers_ahead", [] {
  const Communicator communicator = connect("shared_memory");
  const GradientCommunicator gradients_of(communicator);
  constexpr int count = 40;
  const int ahead = communicator.rank() == 0 ? static_cast<int>(payload_slots) + 1 : 1;
  std::deque<std::unique_ptr<PendingAllGather>> pending;
  int waited = 0;
  const auto wait_for_first = [&] {
    const auto all = pending.front()->wait();
    for (std::size_t rank = 0; rank < 2; ++rank) {
      int number = -1;
      std::memcpy(&number, all.data() + rank * sizeof(int), sizeof(int));
      EXPECT_EQ(number, waited);
    }
    pending.pop_front();
    ++waited;
  };
  for (int number = 0; number < count; ++number) {
    pending.push_back(gradients_of.start_small_all_gather(std::as_bytes(std::span(&number, 1))));
    if (static_cast<int>(pending.size()) == ahead) wait_for_first();
  }
  while (!pending.empty()) wait_for_first();
});

TEST(SharedMemory, ARankMayStartMoreAllGathersThanThereAreSlots) {
  test::expect_success(run_processes(gathers_ahead, 2));
}

const RankProgram equals_tcp("shm_equals_tcp", [] {
  const Communicator shared = connect("shared_memory");
  EXPECT_EQ(shared.backend_name(), "shared memory + tcp");
  const Communicator tcp = connect("tcp");
  EXPECT_EQ(tcp.backend_name(), "tcp");
  for (const auto dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
    for (const std::int64_t elements : {1, 7, 64, 1000, 300'001}) {
      const auto seed = static_cast<std::uint64_t>(elements * 10 + shared.rank());
      at::Tensor by_memory = gradients(shared, elements, dtype);
      at::Tensor by_messages = at::empty({elements}, dtype);
      for (int repeat = 0; repeat < 3; ++repeat) {
        by_memory.copy_(random_tensor({elements}, seed).to(dtype));
        by_messages.copy_(by_memory);
        for (const auto& [communicator, tensor] : {std::pair(shared, by_memory), std::pair(tcp, by_messages)}) {
          const auto sum = GradientCommunicator(communicator).start_all_reduce(tensor);
          sum->finish_reduce_scatter(0.3);
          sum->wait();
        }
        EXPECT_TRUE(at::equal(by_memory, by_messages)) << toString(dtype) << " x " << elements;
      }
    }
  }
});
TEST(SharedMemory, SumsEqualThoseOfMessagesBitForBit) {
  for (const int size : {2, 3, 4}) test::expect_success(run_processes(equals_tcp, size));
}

// As in the reducer: all-reduces are started here and reduced on the queue thread, with many in flight.
const RankProgram many_in_flight("shm_many_in_flight", [] {
  const Communicator job = connect("auto");
  const Communicator communicator = job.duplicate("gradients");
  const at::Tensor memory = gradients(communicator, 20 * 4096, at::kFloat);
  for (int round = 0; round < 50; ++round) {
    std::vector<std::shared_ptr<PendingAllReduce>> sums;
    for (int bucket = 0; bucket < 20; ++bucket) {
      const at::Tensor part = memory.narrow(0, bucket * 4096, 4096);
      part.fill_(static_cast<float>(bucket + communicator.rank()));
      sums.emplace_back(GradientCommunicator(communicator).start_all_reduce(part));
      GradientCommunicator(communicator).submit([sum = sums.back()] { sum->finish_reduce_scatter(1.0); });
    }
    const int value = round * 10 + communicator.rank();
    const std::shared_ptr<PendingAllGather> exchange =
        GradientCommunicator(communicator).start_small_all_gather(std::as_bytes(std::span(&value, 1)));
    GradientCommunicator(communicator)
        .submit([&] {
          for (const auto& sum : sums) sum->wait();
          const auto bytes = exchange->wait();
          for (int rank = 0; rank < communicator.size(); ++rank) {
            int received = 0;
            std::memcpy(&received, bytes.data() + static_cast<std::size_t>(rank) * sizeof(int), sizeof(int));
            EXPECT_EQ(received, round * 10 + rank);
          }
        })
        .wait();
    const int size = communicator.size();
    for (int bucket = 0; bucket < 20; ++bucket) {
      const auto expected = static_cast<float>(bucket * size + size * (size - 1) / 2);
      EXPECT_TRUE(at::equal(memory.narrow(0, bucket * 4096, 4096), at::full({4096}, expected)));
    }
  }
});
TEST(SharedMemory, ManySumsInFlight) {
  for (const int size : {2, 3, 5}) test::expect_success(run_processes(many_in_flight, size));
}

const RankProgram killed_in_a_sum("shm_killed_in_a_sum", [] {
  const Communicator communicator = connect("shared_memory");
  at::Tensor memory = gradients(communicator, 1 << 20, at::kFloat);
  auto last_sum = std::chrono::steady_clock::now();
  try {
    for (int round = 0;; ++round) {
      last_sum = std::chrono::steady_clock::now();
      const auto sum = GradientCommunicator(communicator).start_all_reduce(memory);
      if (round == 5 && communicator.rank() == 1) raise(SIGKILL);
      sum->finish_reduce_scatter(1.0);
      sum->wait();
    }
  } catch (const PeerError& failure) {
    EXPECT_EQ(failure.ranks(), std::vector<int>{1}) << failure.what();
    const std::chrono::duration<double, std::milli> taken = std::chrono::steady_clock::now() - last_sum;
    std::cout << "named after " << taken.count() << " ms" << std::endl;
    // Shared memory has no name in a file system, so nothing is left if all ranks are killed.
    const std::string mappings = test::content_of("/proc/self/maps");
    EXPECT_NE(mappings.find("/memfd:tutti (deleted)"), std::string::npos) << mappings;
    EXPECT_EQ(mappings.find(" /dev/shm/"), std::string::npos) << mappings;
  }
});
TEST(SharedMemory, AKilledRankIsNamedAndLeavesNoFiles) {
  const auto results = run_processes(killed_in_a_sum, 3);
  for (const int rank : {0, 2}) std::cout << "rank " << rank << ": " << results[rank].output;
  for (const int rank : {0, 2}) {
    EXPECT_EQ(results[rank].exit_code, 0) << results[rank].output;
    EXPECT_NE(results[rank].output.find("named"), std::string::npos) << results[rank].output;
  }
}

const RankProgram absent_from_a_sum("shm_absent_from_a_sum", [] {
  // A communicator with a long timeout, so that only rank 2 is late for the all-reduce.
  const Communicator without_deadline = connect("tcp");
  const Communicator communicator = connect("shared_memory", std::chrono::seconds(5));
  at::Tensor memory = gradients(communicator, 1 << 10, at::kFloat);
  without_deadline.barrier().wait();
  if (communicator.rank() == 2) {
    ::pause();
    return;
  }
  try {
    const auto sum = GradientCommunicator(communicator).start_all_reduce(memory);
    sum->finish_reduce_scatter(1.0);
    sum->wait();
  } catch (const TimeoutError& timeout) {
    EXPECT_EQ(timeout.ranks(), std::vector<int>{2}) << timeout.what();
    EXPECT_TRUE(communicator.failed());
    std::cout << "waited" << std::endl;
  }
});
TEST(SharedMemory, AnAbsentRankIsNamedAtTheDeadline) {
  test::RankProcesses ranks(absent_from_a_sum, 3);
  for (const int rank : {0, 1}) EXPECT_TRUE(ranks.wait_for_output(rank, "waited"));
  ranks.send_signal(2, SIGKILL);
  const auto results = ranks.wait();
  for (const int rank : {0, 1}) EXPECT_EQ(results[rank].exit_code, 0) << results[rank].output;
}

const RankProgram stopped_before_a_sum("shm_stopped_before_a_sum", [] {
  const Communicator communicator = connect("shared_memory");
  at::Tensor memory = gradients(communicator, 1 << 10, at::kFloat);
  if (communicator.rank() == 2) raise(SIGSTOP);
  try {
    const auto sum = GradientCommunicator(communicator).start_all_reduce(memory);
    sum->finish_reduce_scatter(1.0);
    sum->wait();
    std::cout << "summed" << std::endl;
  } catch (const TimeoutError& timeout) {
    EXPECT_EQ(timeout.ranks(), std::vector<int>{2}) << timeout.what();
    std::cout << timeout.what() << std::endl;
  } catch (const PeerError& failure) {
    // Rank 2: rank 0 may have exited before rank 2 continues.
    EXPECT_EQ(communicator.rank(), 2) << failure.what();
  }
});
TEST(SharedMemory, AStoppedRankIsNamedLongBeforeTheDeadline) {
  test::RankProcesses ranks(stopped_before_a_sum, 3);
  for (const int rank : {0, 1}) {
    EXPECT_TRUE(ranks.wait_for_output(rank, "rank 2 has been stopped for 2 s (SIGSTOP or Ctrl+Z)"));
  }
  ranks.send_signal(2, SIGCONT);
  const auto results = ranks.wait();
  for (const int rank : {0, 1, 2}) EXPECT_EQ(results[rank].exit_code, 0) << results[rank].output;
  EXPECT_EQ(results[2].output.find("summed"), std::string::npos) << results[2].output;
}

// exec() keeps the process and its start time, but closes its connections.
const RankProgram execs("shm_execs", [] {
  const Communicator communicator = connect("shared_memory", std::chrono::hours(1));  // a timeout names rank 2 too
  if (communicator.rank() == 2) {
    std::cout << "execs" << std::endl;
    ::execlp("sleep", "sleep", "1000", nullptr);
    std::abort();
  }
  try {
    communicator.barrier().wait();
    ADD_FAILURE() << "rank 2 cannot have entered the barrier";
  } catch (const PeerError& failure) {
    EXPECT_EQ(failure.ranks(), std::vector<int>{2}) << failure.what();
  }
  std::cout << "failed" << std::endl;
});
TEST(SharedMemory, ARankThatCallsExecHasExited) {
  test::RankProcesses ranks(execs, 3);
  for (const int rank : {0, 1}) EXPECT_TRUE(ranks.wait_for_output(rank, "failed"));
  ranks.send_signal(2, SIGKILL);
  const auto results = ranks.wait();
  for (const int rank : {0, 1}) EXPECT_EQ(results[rank].exit_code, 0) << results[rank].output;
}

const RankProgram stops_for_a_while("shm_stops_for_a_while", [] {
  const Communicator communicator = connect("shared_memory");
  communicator.barrier({.name = "before"}).wait();
  if (communicator.rank() == 1) raise(SIGSTOP);
  communicator.barrier({.name = "after"}).wait();
});

TEST(SharedMemory, AStopIsLoggedLongBeforeItIsAFailure) {
  test::RankProcesses ranks(stops_for_a_while, 2, {.variables = {{"TUTTI_HEARTBEAT_TIMEOUT", "3600"}}});
  EXPECT_TRUE(ranks.wait_for_output(
      0, "rank 1 has missed heartbeats for 2 s (SIGSTOP or Ctrl+Z). This is a failure after 3600 s"));
  ranks.send_signal(1, SIGCONT);
  test::expect_success(ranks.wait());
}

// A child is forked without its parent's threads and shared memory. At exit() it destroys static objects.
const RankProgram forks_and_exits("shm_forks_and_exits", [] {
  static const Communicator communicator = connect("auto");
  at::Tensor large = at::ones({1 << 20});
  communicator.all_reduce(large).wait();  // starts the queue thread
  const pid_t child = ::fork();
  if (child == 0) std::exit(0);
  int status = -1;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0) << "ended by signal " << WTERMSIG(status);
  communicator.barrier().wait();
});

TEST(SharedMemory, AForkedChildExitsWithAStaticCommunicator) {
  test::expect_success(test::run_processes(forks_and_exits, 2));
}

TEST(SharedSegment, IsTheSameMappingInAProcessAndOutlivesItsDescriptor) {
  const auto created = SharedSegment::create(10'000);
  const auto opened = SharedSegment::open(created->address(), 10'000);
  created->close_descriptor();
  EXPECT_EQ(created->data(), opened->data());
  created->data()[9'999] = std::byte{42};
  EXPECT_EQ(opened->data()[9'999], std::byte{42});
}

// Each value is set only after the waiter for the value before has returned. So a waiter that returns early is seen.
TEST(SequenceCounter, AWaiterReturnsWhenItsValueIsReachedAndNotBefore) {
  constexpr std::uint32_t last = 4;
  SequenceCounter counter{};
  std::atomic<std::uint32_t> set = 0;
  std::array<std::promise<std::uint32_t>, last + 1> returned;  // by awaited value: the value that was set by then
  std::vector<std::thread> waiters;
  for (std::uint32_t value = last; value >= 1; --value) {
    waiters.emplace_back([&, value] {
      EXPECT_TRUE(counter.wait_for(value, 0, Clock::now() + std::chrono::seconds(30), [] {}));
      returned[value].set_value(set.load());
    });
  }
  for (std::uint32_t value = 1; value <= last; ++value) {
    set = value;
    counter.advance_to(value);
    EXPECT_EQ(returned[value].get_future().get(), value);
  }
  for (auto& waiter : waiters) waiter.join();
}

TEST(SequenceCounter, ReturnsAtTheDeadlineAndThrowsWhatThePeerCheckThrows) {
  SequenceCounter counter{};
  EXPECT_FALSE(counter.wait_for(1, 10, Clock::now() + std::chrono::milliseconds(30), [] {}));
  const auto exited = [] { throw std::runtime_error("exited"); };
  EXPECT_THROW(counter.wait_for(1, 10, Clock::now() + std::chrono::seconds(30), exited), std::runtime_error);
}

TEST(SequenceCounter, ValuesMayWrapAround) {
  SequenceCounter counter{};
  counter.advance_to(0xffffffffU);
  EXPECT_FALSE(counter.reached(1));
  counter.advance_to(1);
  EXPECT_TRUE(counter.reached(0xffffffffU));
}

}  // namespace
}  // namespace tutti::comm::shared_memory_test
