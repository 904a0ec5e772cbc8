// Ranks: 2 to 4 processes over TCP. A rank exits, hangs, or does not join.
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>

#include "support/ranks.h"
#include "tutti/core/error.h"
#include "tutti/detail/comm/gradient_communicator.h"

namespace tutti::test::tcp_failures_test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

void say(const std::string& text) {
  std::puts(text.c_str());
  std::fflush(stdout);
}

// Prints what `body` throws as "TimeoutError [2]: message".
void report_failure_of(const std::function<void()>& body) {
  const auto report = [](const char* type, const PeerError& failure) {
    std::string ranks;
    for (const int rank : failure.ranks()) {
      if (!ranks.empty()) ranks += " ";
      ranks += std::to_string(rank);
    }
    say(std::string(type) + " [" + ranks + "]: " + failure.what());
  };
  try {
    body();
    say("nothing was thrown");
  } catch (const TimeoutError& failure) {
    report("TimeoutError", failure);
  } catch (const PeerError& failure) {
    report("PeerError", failure);
  } catch (const UsageError& failure) {
    say(std::string("UsageError: ") + failure.what());
  }
}

void expect_output(const RankResult& result, const std::string& text) {
  EXPECT_EQ(result.exit_code, 0) << "signal " << result.signal << ", output:\n" << result.output;
  EXPECT_NE(result.output.find(text), std::string::npos) << "expected: " << text << "\noutput:\n" << result.output;
}

[[noreturn]] void wait_for_a_signal() {
  for (;;) ::pause();
}

const RankProgram waits_in_a_gradient_sum("tcp_waits_in_a_gradient_sum", [] {
  const auto communicator = Communicator::connect(read_environment(), {.backend = "tcp"});
  auto sum = comm::GradientCommunicator(communicator).start_all_reduce(at::ones({3'000'000}));
  communicator.barrier().wait();
  say("ready");
  if (communicator.rank() == std::stoi(std::getenv("VICTIM"))) wait_for_a_signal();
  report_failure_of([&] {
    sum->finish_reduce_scatter(1);
    sum->wait();
  });
});

const RankProgram waits_in_all_reduce("tcp_waits_in_all_reduce", [] {
  const auto communicator = Communicator::connect(read_environment(), {.backend = "tcp"});
  communicator.barrier().wait();
  say("ready");
  if (communicator.rank() == std::stoi(std::getenv("VICTIM"))) wait_for_a_signal();
  const CallOptions call{.timeout = seconds(5), .name = ""};
  report_failure_of([&] { communicator.all_reduce(at::ones({100'000}), ReduceOp::sum, call).wait(); });
});

// Rank 0 waits, and the others do not enter the call.
const RankProgram rank_zero_waits("tcp_rank_zero_waits", [] {
  const auto communicator = Communicator::connect(read_environment(), {.backend = "tcp"});
  communicator.barrier().wait();
  say("ready");
  if (communicator.rank() != 0) wait_for_a_signal();
  report_failure_of([&] { communicator.all_reduce(at::ones({100'000})).wait(); });
});

const RankProgram receives_from_rank_one("tcp_receives_from_rank_one", [] {
  const auto communicator = Communicator::connect(read_environment());
  say("ready");
  if (communicator.rank() == 1) wait_for_a_signal();
  report_failure_of([&] { communicator.receive(at::ones({4}), 1).wait(); });
});

// More than the sockets hold, so that the program of rank 0 ends before rank 1 receives all.
const RankProgram sends_and_ends("tcp_sends_and_ends", [] {
  const auto communicator = Communicator::connect(read_environment(), {.backend = "tcp"});
  constexpr int messages = 60;
  const auto numbers = at::ones({1'000'000});
  for (int sent = 0; communicator.rank() == 0 && sent < messages; ++sent) communicator.send(numbers, 1);
  if (communicator.rank() == 0) return;
  for (int received = 0; received < messages; ++received) communicator.receive(numbers.zero_(), 0).wait();
  say(numbers.equal(at::ones_like(numbers)) ? "received" : "other numbers");
});

const RankProgram one_leaves_normally("tcp_one_leaves_normally", [] {
  const auto communicator = Communicator::connect(read_environment(), {.backend = "tcp"});
  if (communicator.rank() == 1) return;
  report_failure_of([&] { communicator.all_reduce(at::ones({4})).wait(); });
});

// The started ranks connect at the same time, however long starting took.
const RankProgram connects("tcp_connects", [] {
  wait_for_go();
  report_failure_of([] { Communicator::connect(read_environment(), {.connect_timeout = milliseconds(4500)}); });
});
std::vector<RankResult> run_connects(int size, const std::vector<int>& absent) {
  RankProcesses ranks(connects, size, {.absent = absent});
  ranks.go();
  return ranks.wait();
}

const RankProgram times_out_with_work_in_flight("tcp_times_out_with_work_in_flight", [] {
  const auto communicator = Communicator::connect(read_environment(), {.backend = "tcp"});
  auto sum = comm::GradientCommunicator(communicator).start_all_reduce(at::ones({3'000'000}));
  if (communicator.rank() == 1) {
    say("ready");
    wait_for_a_signal();
  }
  report_failure_of([&] { communicator.barrier({.timeout = milliseconds(300), .name = ""}).wait(); });
  sum.reset();  // must neither block nor crash
  say("left");
});

TEST(TcpFailures, ADeadlineNamesTheAbsentRank) {
  RankProcesses ranks(times_out_with_work_in_flight, 2);
  ASSERT_TRUE(ranks.wait_for_output(0, "left"));
  ranks.send_signal(1, SIGKILL);
  const auto results = ranks.wait();
  expect_output(results[0],
                "TimeoutError [1]: barrier (operation 1): rank 1 did not enter the call within 300 ms; rank 0 was "
                "waiting");
}

TEST(TcpFailures, AllRanksNameAKilledRank) {
  for (const auto* program : {&waits_in_a_gradient_sum, &waits_in_all_reduce}) {
    RankProcesses ranks(*program, 3, {.variables = {{"VICTIM", "1"}}});
    for (int rank = 0; rank < 3; ++rank) ASSERT_TRUE(ranks.wait_for_output(rank, "ready"));
    ranks.send_signal(1, SIGKILL);
    const auto results = ranks.wait();
    EXPECT_EQ(results[1].signal, SIGKILL);
    for (const int rank : {0, 2}) {
      expect_output(results[static_cast<std::size_t>(rank)], "PeerError [1]");
      expect_output(results[static_cast<std::size_t>(rank)], "rank 1 disconnected (connection closed)");
    }
  }
}

// Rank 0 waits for a rank that is computing. The exit of another one ends the call long before that rank enters it.
TEST(TcpFailures, AnExitEndsACallThatWaitsForAnotherRank) {
  for (const int victim : {1, 2, 3}) {
    RankProcesses ranks(rank_zero_waits, 4);
    for (int rank = 0; rank < 4; ++rank) ASSERT_TRUE(ranks.wait_for_output(rank, "ready"));
    ranks.send_signal(victim, SIGKILL);
    EXPECT_TRUE(ranks.wait_for_output(0, "PeerError [" + std::to_string(victim) + "]"));
  }
}

// No message has passed between them before.
TEST(TcpFailures, AnExitEndsTheFirstMessageOfTwoRanks) {
  RankProcesses ranks(receives_from_rank_one, 2);
  for (int rank = 0; rank < 2; ++rank) ASSERT_TRUE(ranks.wait_for_output(rank, "ready"));
  ranks.send_signal(1, SIGKILL);
  EXPECT_TRUE(ranks.wait_for_output(0, "PeerError [1]"));
}

TEST(TcpFailures, AMessageOfARankThatIsStoppedEnds) {
  RankProcesses ranks(receives_from_rank_one, 2);
  for (int rank = 0; rank < 2; ++rank) ASSERT_TRUE(ranks.wait_for_output(rank, "ready"));
  ranks.send_signal(1, SIGSTOP);
  EXPECT_TRUE(ranks.wait_for_output(0, "[1]"));
  ranks.send_signal(1, SIGKILL);
  expect_output(ranks.wait()[0], "TimeoutError [1]: receive (tag 0): rank 1 has been stopped for ");
}

TEST(TcpFailures, AStoppedRankIsLoggedLongBeforeItIsAFailure) {
  RankProcesses ranks(receives_from_rank_one, 2, {.variables = {{"TUTTI_HEARTBEAT_TIMEOUT", "3600"}}});
  for (int rank = 0; rank < 2; ++rank) ASSERT_TRUE(ranks.wait_for_output(rank, "ready"));
  ranks.send_signal(1, SIGSTOP);
  EXPECT_TRUE(ranks.wait_for_output(0, "rank 1 has missed heartbeats for 2 s (SIGSTOP or Ctrl+Z)"));
}

TEST(TcpFailures, ASendThatIsNotWaitedForArrives) {
  expect_output(run_processes(sends_and_ends, 2)[1], "received");
}

TEST(TcpFailures, TheRankOfTheCoordinatorIsNamedWhenItExits) {
  RankProcesses ranks(waits_in_all_reduce, 3, {.variables = {{"VICTIM", "0"}}});
  for (int rank = 0; rank < 3; ++rank) ASSERT_TRUE(ranks.wait_for_output(rank, "ready"));
  ranks.send_signal(0, SIGKILL);
  const auto results = ranks.wait();
  expect_output(results[1], "PeerError [0]");
  expect_output(results[2], "PeerError [0]");
}

TEST(TcpFailures, ARankOfTheCoordinatorThatHangsIsNamed) {
  RankProcesses ranks(waits_in_all_reduce, 3, {.variables = {{"VICTIM", "0"}}});
  for (int rank = 0; rank < 3; ++rank) ASSERT_TRUE(ranks.wait_for_output(rank, "ready"));
  ranks.send_signal(0, SIGSTOP);
  for (const int rank : {1, 2}) EXPECT_TRUE(ranks.wait_for_output(rank, "[0]")) << rank;
  ranks.send_signal(0, SIGKILL);
  const auto results = ranks.wait();
  for (const std::size_t rank : {1, 2}) expect_output(results[rank], "[0]");
}

TEST(TcpFailures, ARankThatLeavesNormallyIsNamed) {
  const auto results = run_processes(one_leaves_normally, 3);
  expect_output(results[0], "PeerError [1]");
  expect_output(results[2], "PeerError [1]");
}

TEST(TcpFailures, RanksThatNeverJoinAreNamed) {
  const auto results = run_connects(4, {1, 3});
  for (const std::size_t rank : {0, 2}) {
    expect_output(results[rank], "TimeoutError [1 3]: ranks 1, 3 did not join within 4500 ms");
  }
}

TEST(TcpFailures, AnUnreachableMasterIsATimeoutErrorThatSaysWhatToCheck) {
  const auto results = run_connects(2, {0});
  expect_output(results[1], "TimeoutError [0]: rank 1 could not reach the coordinator at 127.0.0.1:");
  expect_output(results[1], "MASTER_ADDR");
}

TEST(TcpFailures, APortInUseIsAUsageError) {
  const int taken = ::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  address.sin6_addr = in6addr_any;
  socklen_t length = sizeof(address);
  ASSERT_EQ(::bind(taken, reinterpret_cast<sockaddr*>(&address), length), 0);
  ASSERT_EQ(::listen(taken, 1), 0);
  ASSERT_EQ(::getsockname(taken, reinterpret_cast<sockaddr*>(&address), &length), 0);
  Environment environment;
  environment.world_size = 2;
  environment.local_world_size = 2;
  environment.master_port = ntohs(address.sin6_port);
  try {
    Communicator::connect(environment, {.connect_timeout = seconds(2)});
    ADD_FAILURE() << "nothing was thrown";
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find(std::to_string(environment.master_port) + " is in use"), std::string::npos)
        << error.what();
  }
  ::close(taken);
}

TEST(TcpFailures, TheBackendGlooIsAUsageErrorThatNamesItsSuccessors) {
  for (const auto* name : {"gloo", "staged:gloo"}) {
    try {
      Communicator::connect({}, {.backend = name});
      ADD_FAILURE() << "nothing was thrown";
    } catch (const UsageError& error) {
      EXPECT_EQ(
          std::string(error.what()),
          "There is no backend 'gloo' for CPU memory. Use tcp for messages over TCP, or c10d:gloo for c10d's Gloo "
          "with CUDA devices.");
    }
  }
}

TEST(TcpFailures, OptionsAreChecked) {
  EXPECT_THROW(Communicator::connect({}, {.backend = "smoke signals"}), UsageError);
  EXPECT_THROW(Communicator::connect({}, {.timeout = milliseconds(0)}), UsageError);
  EXPECT_EQ(Communicator::connect({}).backend_name(), "single");
}

}  // namespace
}  // namespace tutti::test::tcp_failures_test
