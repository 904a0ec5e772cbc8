// Ranks: two offices in one process, which share a store, and strangers who can read it.
#include "comm/mail/post_office.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <array>
#include <future>
#include <list>
#include <string>

#include "comm/mail/outgoing.h"
#include "tutti/core/error.h"

namespace tutti::test::post_office_test {
namespace {

using namespace tutti::comm;
using namespace std::chrono_literals;

constexpr std::uint64_t group = 7;

JobSecretPtr secret(const std::string& text = "the secret of this job") {
  return std::make_shared<JobSecret>(text, "a test");
}

/// An order whose end can be waited for.
struct Told {
  std::array<char, 4> memory{'w', 'o', 'r', 'd'};
  std::promise<std::exception_ptr> end;
  OrderPtr order = std::make_shared<Order>();

  Told(const std::string& what, int peer, std::chrono::milliseconds timeout) {
    order->what = what;
    order->peer = peer;
    order->memory = std::as_writable_bytes(std::span(memory));
    order->timeout = timeout;
    order->deadline = Clock::now() + timeout;
    order->peer_is_gone = [] { return false; };
    order->end = [this](std::exception_ptr failure) { end.set_value(std::move(failure)); };
  }
  void wait() {
    if (const auto failure = end.get_future().get()) std::rethrow_exception(failure);
  }
};

class PostOffices : public testing::Test {
 protected:
  Rendezvous with(JobSecretPtr known) const {
    return {.store = store_, .bulletin_store = store_, .holder = -1, .secret = std::move(known)};
  }
  static Letter letter() { return {.group = group, .source = 1, .bytes = 4}; }

  c10::intrusive_ptr<c10d::Store> store_ = c10::make_intrusive<c10d::HashStore>();
};

TEST_F(PostOffices, DeliverWhereBothKnowTheSecret) {
  for (const auto& known : {JobSecretPtr(), secret()}) {
    PostOffice to(with(known), 0, "127.0.0.1");
    PostOffice from(with(known), 1, "127.0.0.1");
    Told sent("send", 0, 20s);
    Told received("receive", 1, 20s);
    received.memory.fill('-');
    to.receive(group, received.order);
    from.send(0, letter(), sent.order);
    sent.wait();
    received.wait();
    EXPECT_EQ(received.memory, sent.memory);
  }
}

TEST_F(PostOffices, TellARankWithAnotherSecret) {
  PostOffice to(with(secret()), 0, "127.0.0.1");
  PostOffice from(with(secret("the secret of another job")), 1, "127.0.0.1");
  Told sent("send", 0, 20s);
  Told received("receive", 1, 500ms);
  to.receive(group, received.order);
  from.send(0, letter(), sent.order);
  try {
    sent.wait();
    ADD_FAILURE() << "sent";
  } catch (const PeerFailure& failure) {
    EXPECT_EQ(std::string(failure.what()), "send: rank 0 and this rank do not share the job's secret.");
    EXPECT_EQ(failure.ranks(), std::vector<int>{0});
  }
  EXPECT_THROW(received.wait(), Timeout);
}

/// Says `words` at the address that rank 0 has left in the store.
FileDescriptor stranger_at(const PostalAddress& address, std::span<const std::byte> words) {
  auto socket = begin_to_connect(address.socket);
  pollfd ready{.fd = socket.get(), .events = POLLOUT, .revents = 0};
  EXPECT_EQ(::poll(&ready, 1, 10'000), 1);
  EXPECT_EQ(write_some(socket, words), words.size());
  return socket;
}

// It has read the store, and says all that a rank says but for the proof.
TEST_F(PostOffices, TakeNoMessageFromAStrangerWhoKnowsTheAddress) {
  for (const bool is_guarded : {false, true}) {
    PostOffice to(with(is_guarded ? secret() : nullptr), 0, "127.0.0.1");
    const auto address = PostalAddress::from_text(store_->get_to_str("mail/0"));
    std::vector<std::byte> words;
    const auto add = [&](std::span<const std::byte> more) { words.insert(words.end(), more.begin(), more.end()); };
    const Greeting greeting{.nonce = address.nonce, .rank = 1};
    const Letter says = letter();
    const std::string message = "evil";
    add(std::as_bytes(std::span(&greeting, 1)));
    add(std::as_bytes(std::span(&says, 1)));
    add(std::as_bytes(std::span(message)));
    Told received("receive", 1, is_guarded ? 500ms : 20s);
    to.receive(group, received.order);
    const auto stranger = stranger_at(address, words);
    if (is_guarded) {
      EXPECT_THROW(received.wait(), Timeout);
    } else {
      received.wait();  // what the secret is for
    }
  }
}

TEST_F(PostOffices, DeliverBesideACrowdOfStrangers) {
  PostOffice to(with(secret()), 0, "127.0.0.1");
  PostOffice from(with(secret()), 1, "127.0.0.1");
  const auto address = PostalAddress::from_text(store_->get_to_str("mail/0"));
  std::list<FileDescriptor> strangers;
  for (int i = 0; i < 300; ++i) {
    const std::string words(static_cast<std::size_t>(i), '\xff');
    strangers.push_back(stranger_at(address, std::as_bytes(std::span(words))));
  }
  Told sent("send", 0, 20s);
  Told received("receive", 1, 20s);
  to.receive(group, received.order);
  from.send(0, letter(), sent.order);
  sent.wait();
  received.wait();
}

}  // namespace
}  // namespace tutti::test::post_office_test
