// Connections that break while both processes run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <future>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "coordinator/client.h"
#include "coordinator/clock.h"
#include "core/socket.h"
#include "flight/wait_state_text.h"
#include "processes.h"
#include "support/socket_bytes.h"
#include "told.h"
#include "tutti/core/error.h"

namespace tutti::coordinator::reconnect_test {
namespace {

using test::client_options;
using test::deadline;
using test::milliseconds;
using test::Process;
using test::seconds;
using test::secret;
using test::server_options;
using test::Told;
using testing::ElementsAre;
using testing::HasSubstr;

// Forwards a connection until it is told to break or to hold it.
class Router {
 public:
  explicit Router(std::uint16_t to) : listening_(listen_tcp("127.0.0.1")), thread_([this, to] { run(to); }) {}
  ~Router() {
    stop_ = true;
    thread_.join();
  }
  std::uint16_t port() const { return static_cast<std::uint16_t>(listening_.address.port); }
  /// Resets both sides of all connections, as a router that has lost its table.
  void reset() {
    resets_ = true;
    while (resets_) std::this_thread::yield();
  }
  /// Sends bytes to the clients that no coordinator sends.
  void disturb() {
    disturbs_ = true;
    while (disturbs_) std::this_thread::yield();
  }
  int connections() const { return connections_; }
  /// While it holds connections it accepts none.
  void hold(bool holds) { holds_ = holds; }
  bool has_waiting_connection() const {
    pollfd waits{.fd = listening_.socket.get(), .events = POLLIN, .revents = 0};
    return ::poll(&waits, 1, 0) == 1;
  }

 private:
  struct Pair {
    FileDescriptor client;
    FileDescriptor server;
  };
  static bool forward(const FileDescriptor& from, const FileDescriptor& to) {
    std::array<std::byte, 4096> bytes;
    const auto count = tutti::test::try_read(from, bytes);
    if (!count) return false;
    for (std::size_t done = 0; done < *count;)
      done += tutti::test::try_write(to, std::span(bytes).first(*count).subspan(done));
    return true;
  }
  static void reset_connection(const FileDescriptor& socket) {
    const linger at_once{.l_onoff = 1, .l_linger = 0};
    ::setsockopt(socket.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
  }
  void run(std::uint16_t to) {
    std::vector<Pair> pairs;
    while (!stop_) {
      if (auto client = holds_ ? std::nullopt : try_accept(listening_.socket)) {
        pairs.push_back({*std::move(client), connect_nonblocking({"127.0.0.1", to})});
        ++connections_;
      }
      if (resets_) {
        for (const auto& pair : pairs) reset_connection(pair.client), reset_connection(pair.server);
        pairs.clear();
        resets_ = false;
      }
      if (disturbs_) {
        const std::string bytes(64, 'x');
        for (const auto& pair : pairs) tutti::test::try_write(pair.client, std::as_bytes(std::span(bytes)));
        disturbs_ = false;
      }
      std::erase_if(pairs, [](const Pair& pair) {
        try {
          return !forward(pair.client, pair.server) || !forward(pair.server, pair.client);
        } catch (const std::system_error& error) {
          return error.code().value() != ENOTCONN;
        }
      });
      std::this_thread::sleep_for(milliseconds(1));
    }
  }

  ListeningSocket listening_;
  std::atomic<bool> stop_ = false;
  std::atomic<bool> resets_ = false;
  std::atomic<bool> disturbs_ = false;
  std::atomic<bool> holds_ = false;
  std::atomic<int> connections_ = 0;
  std::thread thread_;
};

TEST(CoordinatorReconnect, ABrokenConnectionIsMadeAgainAndLosesNothing) {
  Server server(server_options(2, secret()));
  Router router(server.port());
  Told told;
  Told other_told;
  Client client(client_options(router.port(), 0, 2, secret()), told.events());
  Client other(client_options(server, 1, 2, secret()), other_told.events());
  for (int breaks = 1; breaks <= 5; ++breaks) {
    auto waits =
        std::async(std::launch::async, [&] { return client.get({"key " + std::to_string(breaks)}, deadline); });
    auto gathers = std::async(std::launch::async, [&] {
      return client.all_gather("topic " + std::to_string(breaks), {0, 1}, "0", deadline);
    });
    router.reset();
    other.report("group", std::to_string(breaks));
    EXPECT_EQ(client.add("count", 1), breaks);
    other.set("key " + std::to_string(breaks), "value");
    EXPECT_THAT(waits.get(), ElementsAre("value"));
    EXPECT_THAT(other.all_gather("topic " + std::to_string(breaks), {0, 1}, "1", deadline), ElementsAre("0", "1"));
    EXPECT_THAT(gathers.get(), ElementsAre("0", "1"));
  }
  ASSERT_TRUE(told.wait_until([&] { return told.reports.size() >= 5; }));
  EXPECT_THAT(told.reports, ElementsAre("group/1/1", "group/1/2", "group/1/3", "group/1/4", "group/1/5"));
  EXPECT_GE(router.connections(), 6);
  EXPECT_TRUE(other_told.locked([&] { return other_told.failed.empty(); }));
  EXPECT_TRUE(told.locked([&] { return told.lost.empty(); }));
}

// The client keeps the broken connection until the next one stands: its end would be that of the process. (With TLS an
// alert comes first.)
TEST(CoordinatorReconnect, AConnectionThatTheClientBreaksIsNoExit) {
  Server server(server_options(2));
  Router router(server.port());
  Told told;
  Client observer(client_options(server, 1, 2), told.events());
  Client client(client_options(router.port(), 0, 2), {});
  for (int breaks = 1; breaks <= 5; ++breaks) {
    router.disturb();
    while (router.connections() == breaks) std::this_thread::yield();
    EXPECT_EQ(client.add("count", 1), breaks);
  }
  observer.num_keys();
  EXPECT_TRUE(told.locked([&] { return told.failed.empty(); }));
}

TEST(CoordinatorReconnect, ARankThatLeavesWhileItConnectsAgainHasNotFailed) {
  Server server(server_options(2));
  Router router(server.port());
  Told told;
  Client observer(client_options(server, 1, 2), told.events());
  auto client = std::make_unique<Client>(client_options(router.port(), 0, 2), ClientEvents{});
  router.hold(true);
  router.disturb();
  while (!router.has_waiting_connection()) std::this_thread::yield();
  auto leaves = std::async(std::launch::async, [&] { client.reset(); });
  EXPECT_EQ(leaves.wait_for(milliseconds(100)), std::future_status::timeout) << "it connects again";
  router.hold(false);
  leaves.get();
  ASSERT_TRUE(told.wait_until([&] { return !told.left.empty() || !told.failed.empty(); }));
  EXPECT_TRUE(told.locked([&] { return told.failed.empty(); }));
}

TEST(CoordinatorReconnect, ARequestThatTimesOutWhileTheConnectionIsBrokenIsCancelled) {
  Server server(server_options(2));
  Router router(server.port());
  Client client(client_options(router.port(), 0, 2), {});
  Client other(client_options(server, 1, 2), {});
  auto gathers = std::async(std::launch::async, [&] {
    client.all_gather("topic", {0, 1}, "0", milliseconds(500), deadline);
  });
  router.hold(true);
  router.disturb();
  while (!router.has_waiting_connection()) std::this_thread::yield();
  EXPECT_EQ(gathers.wait_for(seconds(1)), std::future_status::timeout) << "only the coordinator knows who is missing";
  router.hold(false);
  try {
    gathers.get();
    ADD_FAILURE();
  } catch (const TimeoutError& error) {
    EXPECT_THAT(error.ranks(), ElementsAre(1));
  }
  EXPECT_THROW(other.all_gather("topic", {0, 1}, "1", milliseconds(1)), TimeoutError) << "rank 0 waits no longer";
}

// A proxy accepts connections while no coordinator listens behind it.
TEST(CoordinatorReconnect, AProxyThatClosesConnectionsAtFirstRefusesNoRank) {
  auto options = server_options(1);
  set_nonblocking(options.listening);
  const auto port = static_cast<std::uint16_t>(local_address_of(options.listening.get()).port);
  auto sum = std::async(std::launch::async, [&] { return Client(client_options(port, 0, 1), {}).add("a", 1); });
  for (const auto end = current_time() + milliseconds(500); current_time() < end; std::this_thread::yield()) {
    try_accept(options.listening);
  }
  Server server(std::move(options));
  EXPECT_EQ(sum.get(), 1);
}

// Its kernel accepts the next connection and acknowledges the hello.
TEST(CoordinatorReconnect, ACoordinatorThatIsStoppedWhileTheConnectionBreaksIsLost) {
  Process process([](Process& self) {
    auto options = server_options(1);
    options.linger = milliseconds(0);
    Server server(std::move(options));
    self.write_line(std::to_string(server.port()));
    self.read_line();
  });
  Router router(static_cast<std::uint16_t>(std::stoi(process.read_line())));
  Told told;
  auto options = client_options(router.port(), 0, 1);
  options.timeouts.heartbeat = options.response_timeout = milliseconds(500);
  Client client(options, told.events());
  process.stop();
  router.disturb();
  ASSERT_TRUE(told.wait_until([&] { return !told.lost.empty(); }));
  EXPECT_THAT(told.lost, ElementsAre(HasSubstr("has not answered for 500 ms")));
}

// A router loses all connections of the job, and its clients come again after the verdict.
TEST(CoordinatorReconnect, RanksWhoseJobHasEndedJoinNoOtherJob) {
  Server server(server_options(2));
  Router router(server.port());
  Told first_told;
  Told second_told;
  Client first(client_options(router.port(), 0, 2), first_told.events());
  Client second(client_options(router.port(), 1, 2), second_told.events());
  router.hold(true);
  router.reset();
  while (!server.has_finished()) std::this_thread::yield();
  Client next(client_options(server, 0, 2), {});
  router.hold(false);
  for (auto* told : {&first_told, &second_told}) {
    ASSERT_TRUE(told->wait_until([&] { return !told->lost.empty(); }));
    EXPECT_THAT(told->lost, ElementsAre(HasSubstr("has failed, and the job has acted upon it")));
  }
  EXPECT_EQ(next.num_keys(), 0);
}

// A rank that is alone in the job has no peer to tell of its reset, so it stays a member, with its key-value entries.
TEST(CoordinatorReconnect, ARankThatIsResetWhileItIsAloneGoesOn) {
  Server server(server_options(2));
  Router router(server.port());
  Told told;
  Client first(client_options(router.port(), 0, 2), told.events());
  EXPECT_EQ(first.add("connects", 1), 1);
  auto gathers = std::async(std::launch::async, [&] {
    return first.all_gather("topic", {0, 1}, "0", deadline, deadline);
  });
  for (int sum = 2; sum < 4; ++sum) {
    router.hold(true);
    router.reset();
    EXPECT_EQ(gathers.wait_for(4 * Membership::reset_grace), std::future_status::timeout);  // several judgements
    router.hold(false);
    EXPECT_EQ(first.add("connects", 1), sum);
  }
  EXPECT_TRUE(told.locked([&] { return told.lost.empty() && told.failed.empty(); }));
  Client second(client_options(server, 1, 2), {});
  const std::vector<std::string> values{"0", "1"};
  EXPECT_EQ(second.all_gather("topic", {0, 1}, "1", deadline), values);
  EXPECT_EQ(gathers.get(), values);
}

TEST(CoordinatorReconnect, ABlockedStateIsStatedAgainAfterABreak) {
  auto options = server_options(2, secret());
  options.timeouts.deadlock = milliseconds(1);
  Server server(std::move(options));
  Router router(server.port());
  Told told;
  Client first(client_options(router.port(), 0, 2, secret()), told.events());
  Client second(client_options(server, 1, 2, secret()), {});
  const auto blocked_in = [](const char* communicator) {
    flight::WaitState state;
    state.pending_calls.push_back({.communicator = communicator, .text = "barrier"});
    for (const auto* name : {"a", "b"}) {
      state.communicators[name] = {.calls = name == std::string(communicator) ? 1U : 0U, .members = {0, 1}};
    }
    return flight::to_text(state);
  };
  router.reset();
  first.blocked(blocked_in("a"), true);  // while there is no connection, or just before it breaks
  second.blocked(blocked_in("b"), true);
  ASSERT_TRUE(told.wait_until([&] { return !told.deadlocks.empty(); }));
  EXPECT_TRUE(told.deadlocks.back().is_certain);
}

}  // namespace
}  // namespace tutti::coordinator::reconnect_test
