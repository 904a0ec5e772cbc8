#pragma once
// Event loops of ranks in one process, and messages between them.
#include <gtest/gtest.h>
#include <poll.h>

#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <span>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "support/socket_bytes.h"
#include "test_endpoints.h"

namespace tutti::test::event_loops {

using namespace tutti::comm;
using namespace std::chrono_literals;
using OutcomeKind = Outcome::Kind;

inline constexpr std::uint64_t channel = 7;

inline JobSecretPtr secret(const std::string& text = "the secret of this job") {
  return std::make_shared<JobSecret>(text, "a test");
}

/// A message with a wait for its outcome.
struct TestMessage final : Message {
  std::string text;
  bool callbacks = true;
  std::function<void()> callback;
  std::thread::id completed_by;
  std::promise<Outcome> outcome;
  std::shared_future<Outcome> ended = outcome.get_future();

  void complete(const Outcome& how) override {
    completed_by = std::this_thread::get_id();
    if (callback) callback();
    outcome.set_value(how);
  }
  bool has_callbacks() const override { return callbacks; }
  bool has_ended() const { return ended.wait_for(0s) == std::future_status::ready; }
  OutcomeKind wait() const { return ended.get().kind; }
};
using TestMessagePtr = std::shared_ptr<TestMessage>;

inline TestMessagePtr make_message(bool is_send, int rank, const std::string& text, std::uint64_t tag = 0) {
  auto message = std::make_shared<TestMessage>();
  message->is_send = is_send;
  message->rank = rank;
  message->channel = channel;
  message->tag = tag;
  message->text = text;
  message->memory = std::as_writable_bytes(std::span(message->text));
  message->deadline = Clock::now() + 20s;
  return message;
}

/// A client that is no event loop.
class RawClient {
 public:
  explicit RawClient(const std::string& address_text)
      : address_(*EndpointAddress::from_text(address_text)), socket_(connect_nonblocking(address_.socket)) {
    wait_for(POLLOUT);
  }
  /// Says that it is `rank` and waits for the verdict.
  void greet(std::int64_t rank) {
    const Hello hello{.nonce = address_.nonce, .rank = rank};
    send(std::as_bytes(std::span(&hello, 1)));
    Verdict verdict{};
    wait_for(POLLIN);
    EXPECT_EQ(test::try_read(socket_, std::as_writable_bytes(std::span(&verdict, 1))), sizeof(verdict));
    EXPECT_EQ(verdict, Verdict::accepted);
  }
  void send(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      wait_for(POLLOUT);
      bytes = bytes.subspan(test::try_write(socket_, bytes));
    }
  }
  void send(const FrameHeader& header) { send(std::as_bytes(std::span(&header, 1))); }
  /// Reads `count` bytes.
  void skip(std::size_t count) {
    std::vector<std::byte> skipped(count);
    while (count > 0 && wait_for(POLLIN)) count -= test::try_read(socket_, std::span(skipped).first(count)).value();
  }
  const EndpointAddress& address() const { return address_; }
  bool wait_for(short events) {
    pollfd ready{.fd = socket_.get(), .events = events, .revents = 0};
    const int found = ::poll(&ready, 1, 20'000);
    EXPECT_EQ(found, 1);
    return found == 1;
  }
  /// Waits for the end of the connection.
  void expect_closed() {
    std::vector<std::byte> ignored(1000);
    try {
      do {
        if (!wait_for(POLLIN)) return;
      } while (test::try_read(socket_, ignored));
    } catch (const std::system_error&) {
      // The connection was reset.
    }
  }

 private:
  EndpointAddress address_;
  FileDescriptor socket_;
};

class EventLoops : public testing::Test {
 protected:
  std::unique_ptr<Endpoint> make_endpoint(int rank, JobSecretPtr known = nullptr) {
    if (encrypts_ && !known) known = secret();
    return endpoints_.make(rank, std::move(known), encrypts_);
  }
  static TestMessagePtr post(Endpoint& endpoint, TestMessagePtr message) {
    endpoint.loop().post(message);
    return message;
  }
  /// Sends a text of `length` from rank 1 to rank 0 and checks it.
  static void check_exchange(Endpoint& rank_0, Endpoint& rank_1, std::size_t length, std::uint64_t tag = 0) {
    const std::string text(length, 'x');
    const auto received = post(rank_0, make_message(false, 1, std::string(length, '-'), tag));
    const auto sent = post(rank_1, make_message(true, 0, text, tag));
    EXPECT_EQ(received->wait(), OutcomeKind::completed);
    EXPECT_EQ(sent->wait(), OutcomeKind::completed);
    EXPECT_EQ(received->text, text);
  }

  TestEndpoints endpoints_{3};
  bool encrypts_ = false;
};

}  // namespace tutti::test::event_loops
