// Processes that are killed or stopped, a coordinator that is stopped.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <functional>
#include <future>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "coordinator/client.h"
#include "coordinator/clock.h"
#include "coordinator/messages.h"
#include "core/socket.h"
#include "processes.h"
#include "support/socket_bytes.h"
#include "told.h"
#include "tutti/core/error.h"

namespace tutti::coordinator::failures_test {
namespace {

using test::client_options;
using test::deadline;
using test::milliseconds;
using test::Process;
using test::seconds;
using test::secret;
using test::server_options;
using test::Told;
using testing::AllOf;
using testing::ElementsAre;
using testing::Field;
using testing::HasSubstr;

// Of a process that is told the port.
ClientOptions options_from(Process& parent, int rank, const std::string& node = "node 0") {
  auto options = client_options(static_cast<std::uint16_t>(std::stoi(parent.read_line())), rank, 2, secret());
  options.member.node = node;
  return options;
}

// Rank 1 of 2: connects to the port it is told, says so, and waits for its end.
void run_rank(Process& parent, const std::string& node = "node 0") {
  Client client(options_from(parent, 1, node), {});
  parent.write_line("connected");
  parent.read_line();
}

ServerOptions server_options_with(milliseconds heartbeat_timeout) {
  auto options = server_options(2, secret());
  options.timeouts.heartbeat = heartbeat_timeout;
  return options;
}

// A job of two ranks: this process is rank 0 and runs the coordinator; rank 1 is a process of its own, which runs
// before this one has threads.
struct TwoRanks {
  explicit TwoRanks(const std::function<void(Process&)>& rank_1, milliseconds heartbeat_timeout = seconds(20))
      : rank(rank_1), server(server_options_with(heartbeat_timeout)) {
    rank.write_line(std::to_string(server.port()));
  }

  Process rank;
  Server server;
  Told told;
  Client client{client_options(server, 0, 2, secret()), told.events()};
};

auto ranks_of(std::vector<int> ranks, Cause cause, bool is_warning) {
  return AllOf(Field(&FailedRanks::ranks, std::move(ranks)), Field(&FailedRanks::cause, cause),
               Field(&FailedRanks::is_warning, is_warning));
}

TEST(CoordinatorFailures, AKilledProcessHasExited) {
  TwoRanks job([](Process& self) { run_rank(self); });
  ASSERT_EQ(job.rank.read_line(), "connected");
  job.rank.signal(SIGKILL);
  ASSERT_TRUE(job.told.wait_until([&] { return !job.told.failed.empty(); }));
  EXPECT_THAT(job.told.failed, ElementsAre(ranks_of({1}, Cause::exited, false)));
}

TEST(CoordinatorFailures, ExecIsAnExit) {
  TwoRanks job([](Process& self) {
    const Client client(options_from(self, 1), {});
    ::execlp("sleep", "sleep", "60", nullptr);
  });
  ASSERT_TRUE(job.told.wait_until([&] { return !job.told.failed.empty(); }));
  EXPECT_THAT(job.told.failed, ElementsAre(ranks_of({1}, Cause::exited, false)));
}

TEST(CoordinatorFailures, AProcessThatLeavesHasNotFailedAlsoIfItsParentSaysThatItHasExited) {
  TwoRanks job([](Process& self) { run_rank(self); });
  ASSERT_EQ(job.rank.read_line(), "connected");
  job.rank.write_line("leave");
  EXPECT_EQ(job.rank.wait(), 0);
  job.server.process_exited(1);
  job.client.num_keys();
  ASSERT_TRUE(job.told.wait_until([&] { return !job.told.left.empty(); }));
  EXPECT_THAT(job.told.left, ElementsAre(1));
  EXPECT_TRUE(job.told.locked([&] { return job.told.failed.empty(); }));
}

TEST(CoordinatorFailures, AStoppedProcessIsReportedThenFails) {
  TwoRanks job([](Process& self) { run_rank(self, "node 1"); }, milliseconds(3000));
  ASSERT_EQ(job.rank.read_line(), "connected");
  job.rank.signal(SIGSTOP);
  ASSERT_TRUE(job.told.wait_until([&] { return job.told.failed.size() == 2; }));
  EXPECT_THAT(job.told.failed, ElementsAre(ranks_of({1}, Cause::stopped, true), ranks_of({1}, Cause::stopped, false)));
}

TEST(CoordinatorFailures, ARankThatIsJudgedWhileStoppedLearnsItWhenItContinues) {
  TwoRanks job(
      [](Process& self) {
        Told told;
        Client client(options_from(self, 1, "node 1"), told.events());
        self.write_line("connected");
        told.wait_until([&] { return !told.lost.empty(); });
        self.write_line(told.lost.front());
      },
      milliseconds(500));
  ASSERT_EQ(job.rank.read_line(), "connected");
  job.rank.signal(SIGSTOP);
  ASSERT_TRUE(job.told.wait_until([&] { return !job.told.failed.empty(); }));
  EXPECT_FALSE(job.told.failed.front().is_warning);
  job.rank.signal(SIGCONT);
  EXPECT_THAT(job.rank.read_line(), HasSubstr("has judged that this rank (1) has failed"));
}

// One frame takes longer than the heartbeat timeout.
TEST(CoordinatorFailures, ARankWhoseFrameArrivesSlowlyHasNotFailed) {
  constexpr auto timeout = milliseconds(1000);
  auto options = server_options(2);
  options.timeouts.heartbeat = timeout;
  options.linger = milliseconds(0);
  Server server(std::move(options));
  Told told;
  Client observer(client_options(server, 0, 2), told.events());
  const Hello hello{.member = {.rank = 1, .world_size = 2, .node = "node 1", .version = "1"}, .key = {7, 7}};
  const auto frames =
      hello.frame() + BodyWriter().text("a").text(std::string(max_value_bytes, 'x')).frame(MessageType::set);
  const auto socket = connect_nonblocking({"127.0.0.1", server.port()});
  auto rest = std::as_bytes(std::span(frames));
  rest = rest.subspan(tutti::test::try_write(socket, rest.first(hello.frame().size())));
  for (const auto end = current_time() + 5 * timeout / 2; current_time() < end;) {
    rest = rest.subspan(tutti::test::try_write(socket, rest.first(1)));
    observer.num_keys();
  }
  EXPECT_TRUE(told.locked([&] { return told.failed.empty(); }));
}

// The coordinator as a process. It says its port.
void run_server(Process& parent, int world_size, milliseconds heartbeat_timeout) {
  auto options = server_options(world_size, secret());
  options.timeouts.heartbeat = heartbeat_timeout;
  options.linger = milliseconds(0);
  Server server(std::move(options));
  parent.write_line(std::to_string(server.port()));
  parent.read_line();
}

ClientOptions options_for(const std::string& port, int rank, int world_size) {
  auto options = client_options(static_cast<std::uint16_t>(std::stoi(port)), rank, world_size, secret());
  options.timeouts.heartbeat = milliseconds(1000);
  return options;
}

void limit_descriptors(rlim_t soft, rlim_t hard) {
  const rlimit limit{.rlim_cur = soft, .rlim_max = hard};
  if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) throw std::system_error(errno, std::generic_category(), "setrlimit");
}

TEST(CoordinatorFailures, ALowLimitOfDescriptorsIsRaisedForAllRanks) {
  constexpr int ranks = 60;
  Process server([](Process& self) {
    limit_descriptors(40, 4096);
    run_server(self, ranks, seconds(20));
  });
  const auto port = server.read_line();
  std::vector<std::unique_ptr<Client>> clients;
  for (int rank = 0; rank < ranks; ++rank) {
    clients.push_back(std::make_unique<Client>(options_for(port, rank, ranks), ClientEvents{}));
  }
  EXPECT_EQ(clients.back()->add("a", 1), 1);
}

TEST(CoordinatorFailures, ATooLowHardLimitOfDescriptorsIsNamed) {
  Process server([](Process& self) {
    limit_descriptors(40, 40);
    run_server(self, 60, seconds(20));
  });
  EXPECT_THAT(server.read_line(), AllOf(HasSubstr("the coordinator of 60 ranks needs"), HasSubstr("may open 40")));
}

TEST(CoordinatorFailures, ACoordinatorThatIsStoppedEndsNothing) {
  Process server([](Process& self) { run_server(self, 2, milliseconds(1000)); });
  const auto port = server.read_line();
  Told told;
  Client first(options_for(port, 0, 2), told.events());
  Client second(options_for(port, 1, 2), {});
  server.stop();
  EXPECT_THROW(first.add("b", 1, milliseconds(1)), TimeoutError);
  auto value = std::async(std::launch::async, [&] { return second.add("a", 1); });
  std::this_thread::sleep_for(seconds(3));  // three times the timeout
  EXPECT_TRUE(told.locked([&] { return told.lost.empty(); }));
  server.signal(SIGCONT);
  EXPECT_EQ(value.get(), 1);
  EXPECT_EQ(first.add("a", 1), 2);
  EXPECT_TRUE(told.locked([&] { return told.failed.empty() && told.lost.empty(); }));
}

// Rank 1's value is at the coordinator before the request of rank 0 and its cancel.
TEST(CoordinatorFailures, AStoppedCoordinatorAnswersAGatherAfterItsTimeout) {
  Process server([](Process& self) { run_server(self, 2, seconds(20)); });
  const auto port = server.read_line();
  Client first(options_for(port, 0, 2), {});
  Client second(options_for(port, 1, 2), {});
  server.stop();
  auto others = std::async(std::launch::async, [&] { return second.all_gather("topic", {0, 1}, "1", deadline); });
  auto values = std::async(std::launch::async, [&] {
    return first.all_gather("topic", {0, 1}, "0", milliseconds(1), deadline);
  });
  EXPECT_EQ(values.wait_for(seconds(2)), std::future_status::timeout);
  server.signal(SIGCONT);
  try {
    EXPECT_THAT(values.get(), ElementsAre("0", "1"));
  } catch (const TimeoutError& error) {  // the coordinator read the bytes of rank 0 first
    EXPECT_THAT(error.ranks(), ElementsAre(1));
    first.all_gather("topic", {0, 1}, "0", deadline);
  }
  EXPECT_THAT(others.get(), ElementsAre("0", "1"));
}

// The coordinator runs again before the rank does.
TEST(CoordinatorFailures, AMachineThatIsStoppedEndsNothing) {
  Process server([](Process& self) { run_server(self, 2, seconds(2)); });
  Process rank([](Process& self) { run_rank(self); });
  const auto port = server.read_line();
  Told told;
  Client client(options_for(port, 0, 2), told.events());
  rank.write_line(port);
  ASSERT_EQ(rank.read_line(), "connected");
  rank.signal(SIGSTOP);
  server.signal(SIGSTOP);
  std::this_thread::sleep_for(seconds(4));  // twice the timeout
  server.signal(SIGCONT);
  client.add("a", 1);
  client.add("a", 1);  // answered after the first judgement
  rank.signal(SIGCONT);
  rank.write_line("leave");
  ASSERT_TRUE(told.wait_until([&] { return !told.left.empty() || !told.failed.empty(); }));
  EXPECT_TRUE(told.locked([&] { return told.failed.empty(); }));
}

TEST(CoordinatorFailures, ACoordinatorThatDoesNotAnswerIsLostWhereThatIsAskedFor) {
  Process server([](Process& self) { run_server(self, 1, seconds(20)); });
  Told told;
  auto options = options_for(server.read_line(), 0, 1);
  options.response_timeout = milliseconds(500);
  Client client(options, told.events());
  EXPECT_EQ(client.add("a", 1), 1);
  server.signal(SIGSTOP);
  ASSERT_TRUE(told.wait_until([&] { return !told.lost.empty(); }));
  EXPECT_THAT(told.lost, ElementsAre(HasSubstr("has not answered for 500 ms")));
}

TEST(CoordinatorFailures, TheEndOfTheCoordinatorsProcessIsToldAtOnce) {
  Process server([](Process& self) { run_server(self, 1, seconds(20)); });
  Told told;
  auto options = options_for(server.read_line(), 0, 1);
  options.timeouts.heartbeat = seconds(1000);
  Client client(options, told.events());
  auto waits = std::async(std::launch::async, [&] { client.get({"absent"}, deadline); });
  server.signal(SIGKILL);
  ASSERT_TRUE(told.wait_until([&] { return !told.lost.empty(); }));
  EXPECT_THAT(told.lost, ElementsAre(HasSubstr("the coordinator's process has exited")));
  EXPECT_THROW(waits.get(), PeerError);
}

TEST(CoordinatorFailures, AForkedChildDoesNotHideTheExitOfItsParent) {
  TwoRanks job([](Process& self) {
    const Client client(options_from(self, 1), {});
    if (::fork() == 0) {
      self.write_line("connected and forked");
      self.read_line();  // ends with the test
      ::_exit(0);
    }
    ::pause();
  });
  ASSERT_EQ(job.rank.read_line(), "connected and forked");
  job.rank.signal(SIGKILL);
  ASSERT_TRUE(job.told.wait_until([&] { return !job.told.failed.empty(); }));
  EXPECT_THAT(job.told.failed, ElementsAre(ranks_of({1}, Cause::exited, false)));
}

TEST(CoordinatorFailures, AForkedChildLeavesTheClientAlone) {
  Server server(server_options(1, secret()));
  Told told;
  auto client = std::make_unique<Client>(client_options(server, 0, 1, secret()), told.events());
  const pid_t child = ::fork();
  if (child == 0) {
    client.reset();
    ::_exit(0);
  }
  int status = 1;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(client->add("a", 1), 1);
  EXPECT_TRUE(told.locked([&] { return told.lost.empty(); }));
}

}  // namespace
}  // namespace tutti::coordinator::failures_test
