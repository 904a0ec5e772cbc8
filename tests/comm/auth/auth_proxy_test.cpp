// Ranks: none. A c10d store behind a server proxy, clients that use a client proxy, and unauthenticated clients.
#include "comm/auth/auth_proxy.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/syscall.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <chrono>
#include <list>
#include <string>
#include <thread>

#include "comm/auth/auth_client.h"
#include "comm/auth/peer_uid.h"
#include "comm/rendezvous/local_port_discovery.h"

namespace tutti::test::auth_proxy_test {
namespace {

using namespace tutti::comm;
using namespace std::chrono_literals;
using Status = AuthResult::Status;
using Clock = std::chrono::steady_clock;

constexpr const char* loopback = "127.0.0.1";
constexpr std::size_t hello_bytes = 16 + 32;

JobSecretPtr secret(const std::string& text = "the secret of this job") {
  return std::make_shared<JobSecret>(text, "a test");
}

c10d::TCPStoreOptions options_at(int port) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(port);
  options.waitWorkers = false;
  options.timeout = 20s;
  return options;
}

FileDescriptor make_nonblocking(int descriptor) {
  ::fcntl(descriptor, F_SETFL, O_NONBLOCK);
  return FileDescriptor(descriptor);
}

/// A job's store and its server proxy.
class Job {
 public:
  Job() {
    const auto inner = listen_on_loopback();
    auto options = options_at(inner.port);
    options.isServer = true;
    options.masterListenFd = inner.descriptor;
    store_ = c10::make_intrusive<c10d::TCPStore>(loopback, options);
    const auto outer = listen_on_loopback();
    proxy_port_ = outer.port;
    proxy_ = std::make_unique<AuthProxy>(AuthProxy::Options{.listening = make_nonblocking(outer.descriptor),
                                                            .server_address = {loopback, inner.port},
                                                            .role = ProxyConnection::Role::server,
                                                            .secret = secret(),
                                                            .subject = "store"});
  }

  SocketAddress proxy_address() const { return {loopback, proxy_port_}; }
  SocketAddress store_address() const { return {loopback, store_->getPort()}; }
  c10d::TCPStore& store() { return *store_; }
  void close_proxy() { proxy_.reset(); }

 private:
  c10::intrusive_ptr<c10d::TCPStore> store_;
  int proxy_port_ = 0;
  std::unique_ptr<AuthProxy> proxy_;
};

/// A client that connects to the store through a client proxy with a secret.
class AuthenticatedClient {
 public:
  explicit AuthenticatedClient(const Job& job, JobSecretPtr known = secret()) {
    const auto listener = listen_on_loopback();
    port_ = listener.port;
    proxy_ = std::make_unique<AuthProxy>(AuthProxy::Options{.listening = make_nonblocking(listener.descriptor),
                                                            .server_address = job.proxy_address(),
                                                            .role = ProxyConnection::Role::client,
                                                            .secret = std::move(known),
                                                            .subject = "store"});
  }
  c10::intrusive_ptr<c10d::TCPStore> connect() const {
    return c10::make_intrusive<c10d::TCPStore>(loopback, options_at(port_));
  }
  int port() const { return port_; }

 private:
  int port_ = 0;
  std::unique_ptr<AuthProxy> proxy_;
};

class UnauthenticatedClient {
 public:
  explicit UnauthenticatedClient(const SocketAddress& address) : socket_(connect_nonblocking(address)) {
    EXPECT_TRUE(wait_for(POLLOUT, 10s));
    finish_connect(socket_);
  }
  /// Stops if the peer closes the connection.
  void send(const std::string& text) {
    std::size_t sent = 0;
    try {
      while (sent < text.size() && wait_for(POLLOUT, 5s)) {
        sent += try_write(socket_, std::as_bytes(std::span(text)).subspan(sent));
      }
    } catch (const std::system_error&) {
      // The peer has closed the connection.
    }
  }
  /// Receives until the peer closes the connection, `most` bytes have arrived or `time` has passed.
  std::string receive(std::size_t most = 1'000'000, std::chrono::milliseconds time = 20s) {
    std::string received;
    const auto until = Clock::now() + time;
    try {
      while (received.size() < most) {
        const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now());
        if (left <= 0ms || !wait_for(POLLIN, left)) return received;
        std::string piece(std::min<std::size_t>(most - received.size(), 4096), '\0');
        const auto count = try_read(socket_, std::as_writable_bytes(std::span(piece)));
        if (!count) break;
        received += piece.substr(0, *count);
      }
    } catch (const std::system_error&) {
      // A reset also closes the connection.
    }
    is_closed_ = received.size() < most;
    return received;
  }
  bool is_closed() const { return is_closed_; }
  const FileDescriptor& socket() const { return socket_; }

 private:
  bool wait_for(short what, std::chrono::milliseconds time) const {
    pollfd one{.fd = socket_.get(), .events = what, .revents = 0};
    return ::poll(&one, 1, static_cast<int>(time.count())) > 0;
  }

  FileDescriptor socket_;
  bool is_closed_ = false;
};

TEST(AuthProxy, AuthenticatedClientsUseTheStore) {
  Job job;
  const AuthenticatedClient one(job);
  const AuthenticatedClient other(job);
  const auto first = one.connect();
  const auto second = other.connect();
  first->set("key", std::vector<std::uint8_t>{1, 2, 3});
  EXPECT_EQ(second->get("key"), (std::vector<std::uint8_t>{1, 2, 3}));
  EXPECT_EQ(first->clone()->get("key").size(), 3U);
  // More bytes than the buffer holds, in both directions, while another client waits.
  std::thread waits([&] { EXPECT_EQ(one.connect()->get("late").size(), 5'000'000U); });
  std::vector<std::uint8_t> large(5'000'000, 7);
  second->set("large", large);
  EXPECT_EQ(first->get("large"), large);
  second->set("late", large);
  waits.join();
}

TEST(AuthProxy, AWrongSecretIsRefused) {
  Job job;
  EXPECT_EQ(authenticate(job.proxy_address(), secret(), "store", 10s).status, Status::authenticated);
  EXPECT_EQ(authenticate(job.proxy_address(), secret("the secret of another job"), "store", 10s).status,
            Status::refused);
  EXPECT_EQ(authenticate(job.proxy_address(), secret(), "p2p", 10s).status, Status::refused);
  EXPECT_EQ(authenticate(job.store_address(), secret(), "store", 200ms).status, Status::no_auth_required);
  const auto no_server_yet = listen_on_loopback();
  EXPECT_EQ(authenticate({loopback, no_server_yet.port}, secret(), "store", 200ms).status, Status::no_response);
  ::close(no_server_yet.descriptor);
  const auto no_server = listen_on_loopback();
  ::close(no_server.descriptor);
  EXPECT_EQ(authenticate({loopback, no_server.port}, secret(), "store", 10s).status, Status::unreachable);
  EXPECT_TRUE(requires_authentication(job.proxy_address(), 10s));
  EXPECT_FALSE(requires_authentication(job.store_address(), 200ms));
}

// The client proves nothing and speaks TCPStore's protocol, as c10d does.
TEST(AuthProxy, AnUnauthenticatedTcpStoreClientGetsNothing) {
  Job job;
  job.store().set("key", std::vector<std::uint8_t>{'v', 'a', 'l', 'u', 'e'});
  auto options = options_at(job.proxy_address().port);
  options.timeout = 1s;
  EXPECT_ANY_THROW(c10d::TCPStore(loopback, options).set("forged", std::vector<std::uint8_t>{1}));
  EXPECT_FALSE(job.store().check({"forged"}));
  // The same through a client proxy with a wrong secret: the server proxy rejects the client proxy's connections.
  const AuthenticatedClient wrong(job, secret("the secret of another job"));
  options.port = static_cast<std::uint16_t>(wrong.port());
  EXPECT_ANY_THROW(c10d::TCPStore(loopback, options).set("forged", std::vector<std::uint8_t>{1}));
  EXPECT_FALSE(job.store().check({"forged"}));
}

TEST(AuthProxy, SendsOnlyItsHelloToUnauthenticatedClients) {
  Job job;
  for (const std::string& words : {std::string(), std::string("GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
                                   std::string(4096, '\xff'), std::string(1'000'000, '\0')}) {
    UnauthenticatedClient raw_client(job.proxy_address());
    raw_client.send(words);
    const bool is_an_answer = words.size() >= 64;
    const auto received = is_an_answer ? raw_client.receive() : raw_client.receive(1'000'000, 100ms);
    EXPECT_LE(received.size(), hello_bytes + 8 + 32);
    EXPECT_EQ(raw_client.is_closed(), is_an_answer);
    // Bytes in flight may be lost with the connection.
    EXPECT_TRUE(received.empty() || received.starts_with("tutti")) << received;
  }
}

// Replays the bytes of an authenticated client: its handshake and its request to the store.
TEST(AuthProxy, AReplayIsRefused) {
  Job job;
  UnauthenticatedClient client(job.proxy_address());
  Handshake handshake(Handshake::Side::client, secret(), "store");
  std::string sent;
  while (handshake.outcome() == Handshake::Outcome::pending) {
    while (!handshake.to_send().empty()) {
      const auto words = handshake.to_send();
      sent.append(reinterpret_cast<const char*>(words.data()), words.size());
      client.send(sent);
      handshake.sent(words.size());
    }
    const auto to = handshake.to_receive();
    const auto received = client.receive(to.size());
    ASSERT_EQ(received.size(), to.size());
    std::ranges::copy(std::as_bytes(std::span(received)), to.begin());
    handshake.received(to.size());
  }
  ASSERT_EQ(handshake.outcome(), Handshake::Outcome::authenticated);

  UnauthenticatedClient again(job.proxy_address());
  EXPECT_EQ(again.receive(hello_bytes).size(), hello_bytes);
  again.send(sent);
  EXPECT_EQ(again.receive().substr(0, 8), "refused!");
  EXPECT_TRUE(again.is_closed());
}

TEST(AuthProxy, ScannersDelayAClientByLessThanFiveSeconds) {
  Job job;
  std::list<UnauthenticatedClient> idle_clients;
  for (int i = 0; i < 350; ++i) idle_clients.emplace_back(job.proxy_address());
  const auto begin = Clock::now();
  const AuthenticatedClient client(job);
  EXPECT_EQ(client.connect()->add("visits", 1), 1);
  EXPECT_LT(Clock::now() - begin, 5s);
  // The proxy does not keep idle clients.
  for (int i = 0; i < 50; ++i) {
    idle_clients.front().receive();
    EXPECT_TRUE(idle_clients.front().is_closed());
    idle_clients.pop_front();
  }
}

TEST(AuthProxy, AClientThatSendsNothingTimesOut) {
  Job job;
  UnauthenticatedClient raw_client(job.proxy_address());
  const auto begin = Clock::now();
  raw_client.receive(1'000'000, 30s);
  EXPECT_TRUE(raw_client.is_closed());
  EXPECT_GE(Clock::now() - begin, 5s);
}

TEST(AuthProxy, ItsDestructionClosesItsConnections) {
  Job job;
  const AuthenticatedClient client(job);
  const auto store = client.connect();
  std::thread closes([&] {
    std::this_thread::sleep_for(100ms);
    job.close_proxy();
  });
  EXPECT_ANY_THROW(store->get("never set"));
  closes.join();
  EXPECT_ANY_THROW(store->add("visits", 1));
}

TEST(ClientProxy, ADisconnectedClientClosesItsConnection) {
  Job job;
  const AuthenticatedClient client(job);
  for (int time = 0; time < 30; ++time) client.connect()->add("connects", 1);
  EXPECT_EQ(job.store().add("connects", 0), 30);
}

// The kernel reports the user that created a socket. A thread of this test runs as another user.
TEST(ClientProxy, ServesTheSameUidOnly) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can be another user";
  Job job;
  const AuthenticatedClient client(job);
  std::thread([&] {
    constexpr int other_uid = 65534;
    ::syscall(SYS_setfsuid, other_uid);
    UnauthenticatedClient other({loopback, client.port()});
    other.send(std::string(100, 'x'));
    EXPECT_EQ(other.receive(), "");
    EXPECT_TRUE(other.is_closed());
  }).join();
  client.connect()->set("key", std::vector<std::uint8_t>{1});

  const auto listening = listen_on_loopback();
  const auto listening_fd = make_nonblocking(listening.descriptor);
  const UnauthenticatedClient same({loopback, listening.port});
  const auto accepted = try_accept(listening_fd);
  ASSERT_TRUE(accepted);
  EXPECT_TRUE(peer_has_same_uid(*accepted));
}

}  // namespace
}  // namespace tutti::test::auth_proxy_test
