// Ranks: two endpoints in one process, which share a store, and unauthenticated clients that can read it.
#include "comm/p2p/endpoint.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <array>
#include <future>
#include <list>
#include <string>

#include "comm/p2p/outbound_connection.h"
#include "tutti/core/error.h"

namespace tutti::test::endpoint_test {
namespace {

using namespace tutti::comm;
using namespace std::chrono_literals;

constexpr std::uint64_t group = 7;

JobSecretPtr secret(const std::string& text = "the secret of this job") {
  return std::make_shared<JobSecret>(text, "a test");
}

/// A request with a wait() for its completion.
struct PendingRequest {
  std::array<char, 4> memory{'w', 'o', 'r', 'd'};
  std::promise<std::exception_ptr> result;
  RequestPtr request = std::make_shared<Request>();

  PendingRequest(const std::string& what, int peer, std::chrono::milliseconds timeout) {
    request->description = what;
    request->peer = peer;
    request->memory = std::as_writable_bytes(std::span(memory));
    request->timeout = timeout;
    request->deadline = Clock::now() + timeout;
    request->peer_has_exited = [] { return false; };
    request->mark_completed = [this](std::exception_ptr failure) { result.set_value(std::move(failure)); };
  }
  void wait() {
    if (const auto failure = result.get_future().get()) std::rethrow_exception(failure);
  }
};

class P2pEndpoints : public testing::Test {
 protected:
  Rendezvous make_rendezvous(JobSecretPtr known) const {
    return {.store = store_, .failure_store = store_, .store_owner = -1, .secret = std::move(known)};
  }
  static MessageHeader header() { return {.group = group, .source = 1, .bytes = 4}; }

  c10::intrusive_ptr<c10d::Store> store_ = c10::make_intrusive<c10d::HashStore>();
};

TEST_F(P2pEndpoints, DeliverWithTheSameSecret) {
  for (const auto& known : {JobSecretPtr(), secret()}) {
    P2pEndpoint to(make_rendezvous(known), 0, "127.0.0.1");
    P2pEndpoint from(make_rendezvous(known), 1, "127.0.0.1");
    PendingRequest sent("send", 0, 20s);
    PendingRequest received("receive", 1, 20s);
    received.memory.fill('-');
    to.receive(group, received.request);
    from.send(0, header(), sent.request);
    sent.wait();
    received.wait();
    EXPECT_EQ(received.memory, sent.memory);
  }
}

TEST_F(P2pEndpoints, RefuseARankWithAnotherSecret) {
  P2pEndpoint to(make_rendezvous(secret()), 0, "127.0.0.1");
  P2pEndpoint from(make_rendezvous(secret("the secret of another job")), 1, "127.0.0.1");
  PendingRequest sent("send", 0, 20s);
  PendingRequest received("receive", 1, 500ms);
  to.receive(group, received.request);
  from.send(0, header(), sent.request);
  try {
    sent.wait();
    ADD_FAILURE() << "sent";
  } catch (const PeerError& failure) {
    EXPECT_EQ(std::string(failure.what()), "send: rank 0 and this rank do not share the job's secret.");
    EXPECT_EQ(failure.ranks(), std::vector<int>{0});
  }
  EXPECT_THROW(received.wait(), TimeoutError);
}

/// Connects to the address that rank 0 published in the store, and sends `words`.
FileDescriptor connect_raw(const EndpointAddress& address, std::span<const std::byte> words) {
  auto socket = connect_nonblocking(address.socket);
  pollfd ready{.fd = socket.get(), .events = POLLOUT, .revents = 0};
  EXPECT_EQ(::poll(&ready, 1, 10'000), 1);
  EXPECT_EQ(try_write(socket, words), words.size());
  return socket;
}

// The client has read the store and sends everything that a rank sends, except the proof.
TEST_F(P2pEndpoints, RefuseAnUnauthenticatedClientThatKnowsTheAddress) {
  for (const bool has_secret : {false, true}) {
    P2pEndpoint to(make_rendezvous(has_secret ? secret() : nullptr), 0, "127.0.0.1");
    const auto address = EndpointAddress::from_text(store_->get_to_str("p2p/0"));
    std::vector<std::byte> words;
    const auto add = [&](std::span<const std::byte> more) { words.insert(words.end(), more.begin(), more.end()); };
    const Hello hello{.nonce = address.nonce, .rank = 1};
    const MessageHeader forged = header();
    const std::string message = "evil";
    add(std::as_bytes(std::span(&hello, 1)));
    add(std::as_bytes(std::span(&forged, 1)));
    add(std::as_bytes(std::span(message)));
    PendingRequest received("receive", 1, has_secret ? 500ms : 20s);
    to.receive(group, received.request);
    const auto client = connect_raw(address, words);
    if (has_secret) {
      EXPECT_THROW(received.wait(), TimeoutError);
    } else {
      received.wait();  // without a secret the forged message is received
    }
  }
}

TEST_F(P2pEndpoints, DeliverBesideManyUnauthenticatedClients) {
  P2pEndpoint to(make_rendezvous(secret()), 0, "127.0.0.1");
  P2pEndpoint from(make_rendezvous(secret()), 1, "127.0.0.1");
  const auto address = EndpointAddress::from_text(store_->get_to_str("p2p/0"));
  std::list<FileDescriptor> clients;
  for (int i = 0; i < 300; ++i) {
    const std::string words(static_cast<std::size_t>(i), '\xff');
    clients.push_back(connect_raw(address, std::as_bytes(std::span(words))));
  }
  PendingRequest sent("send", 0, 20s);
  PendingRequest received("receive", 1, 20s);
  to.receive(group, received.request);
  from.send(0, header(), sent.request);
  sent.wait();
  received.wait();
}

}  // namespace
}  // namespace tutti::test::endpoint_test
