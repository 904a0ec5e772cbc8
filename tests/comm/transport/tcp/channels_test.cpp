// Ranks: 3 processes over TCP. Channels that share connections.
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <string>
#include <vector>

#include "support/ranks.h"
#include "tutti/core/environment.h"
#include "tutti/core/error.h"

namespace tutti::test::channels_test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

int entries_of(const char* folder) {
  const std::filesystem::directory_iterator entries(folder);
  return static_cast<int>(std::distance(begin(entries), end(entries)));
}

void check_sum(const Communicator& communicator) {
  const auto ranks = at::full({1000}, communicator.rank(), at::kFloat);
  communicator.all_reduce(ranks).wait();
  const int size = communicator.size();
  EXPECT_TRUE(at::equal(ranks, at::full({1000}, size * (size - 1) / 2, at::kFloat)));
}

const RankProgram makes_channels("tcp_mux_makes_channels", [] {
  const auto communicator = Communicator::connect(read_environment(), {.backend = "tcp"});
  check_sum(communicator);
  const int threads = entries_of("/proc/self/task");
  const int descriptors = entries_of("/proc/self/fd");
  std::vector<Communicator> channels;
  for (int number = 0; number < 20; ++number) {
    channels.push_back(communicator.duplicate("channel"));
    check_sum(channels.back());
    const auto pair = communicator.split(communicator.rank() % 2);
    ASSERT_TRUE(pair.has_value());
    check_sum(*pair);
  }
  // Each channel has a thread for its queued calls.
  EXPECT_LE(entries_of("/proc/self/task"), threads + 20);
  EXPECT_EQ(entries_of("/proc/self/fd"), descriptors);
  for (const auto& channel : channels) check_sum(channel);
});
TEST(Channels, AChannelNeedsNoConnection) {
  expect_success(run_processes(makes_channels, 3));
}

// More channels than channel ids.
const RankProgram makes_channels_one_by_one("tcp_mux_makes_channels_one_by_one", [] {
  const auto communicator = Communicator::connect(read_environment(), {.backend = "tcp"});
  for (int number = 0; number < 600; ++number) communicator.duplicate("channel").barrier().wait();
  check_sum(communicator);
});
TEST(Channels, ClosedChannelsReleaseTheirIds) {
  expect_success(run_processes(makes_channels_one_by_one, 3));
}

const RankProgram rank_is_late("tcp_mux_rank_is_late", [] {
  const auto communicator = Communicator::connect(read_environment(), {.backend = "tcp"});
  const auto fails = communicator.duplicate("fails");
  const auto unaffected = communicator.duplicate("unaffected");
  fails.barrier().wait();
  const auto call = [&](milliseconds timeout) {
    fails.all_reduce(at::ones({100'000}), ReduceOp::sum, {.timeout = timeout, .name = ""}).wait();
  };
  // This is no deadlock: rank 1 waits for messages that may still arrive.
  auto notice = at::ones({1});
  if (communicator.rank() == 1) {
    for (const int other : {0, 2}) communicator.receive(notice, other).wait();
    EXPECT_THROW(call(seconds(30)), PeerError);
  } else {
    try {
      call(milliseconds(300));
      ADD_FAILURE() << "nothing was thrown";
    } catch (const PeerError& failure) {
      EXPECT_EQ(failure.ranks(), std::vector<int>{1}) << failure.what();
    }
    communicator.send(notice, 1).wait();
  }
  EXPECT_TRUE(fails.failed());
  for (int time = 0; time < 3; ++time) {
    check_sum(communicator);
    check_sum(unaffected);
  }
  check_sum(communicator.duplicate("later"));
});
TEST(Channels, AFailedChannelDoesNotAffectOtherChannels) {
  expect_success(run_processes(rank_is_late, 3));
}

const RankProgram closes_a_channel("tcp_mux_closes_a_channel", [] {
  const auto communicator = Communicator::connect(read_environment(), {.backend = "tcp"});
  {
    const auto left = communicator.duplicate("left");
    left.barrier().wait();
    if (communicator.rank() != 1) {
      try {
        left.all_reduce(at::ones({4})).wait();
        ADD_FAILURE() << "nothing was thrown";
      } catch (const PeerError& failure) {
        EXPECT_EQ(failure.ranks(), std::vector<int>{1}) << failure.what();
      }
    }
  }
  check_sum(communicator);
});
TEST(Channels, ARankThatClosesAChannelIsNamed) {
  expect_success(run_processes(closes_a_channel, 3));
}

constexpr int line_of_end = __LINE__ + 8;
const RankProgram one_is_absent("tcp_mux_one_is_absent", [] {
  const auto job = Communicator::connect(read_environment(), {.backend = "tcp"});
  const auto channel = job.duplicate("channel");
  if (job.rank() == 1) {
    std::signal(SIGUSR1, [](int) {});
    ::pause();
  }
  channel.barrier({.name = "end"}).wait();
});
TEST(Channels, OneRankLogsTheSlowRankAndTheCallAfterTenSeconds) {
  RankProcesses ranks(one_is_absent, 3);
  EXPECT_TRUE(ranks.wait_for_output(
      0, "barrier 'end' (operation 0, channels_test.cpp:" + std::to_string(line_of_end) +
             ") of a group of 3 has waited for 10 s for rank 1 (`tutti inspect` tells what it does)"));
  ranks.send_signal(1, SIGUSR1);
  const auto results = ranks.wait();
  expect_success(results);
  for (const int rank : {1, 2}) {
    EXPECT_EQ(results[rank].output.find("has waited"), std::string::npos) << results[rank].output;
  }
}

}  // namespace
}  // namespace tutti::test::channels_test
