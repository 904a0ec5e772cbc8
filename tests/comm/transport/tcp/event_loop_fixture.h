#pragma once
// Event loops of ranks in one process, and messages between them.
#include <gtest/gtest.h>

#include <cstdint>
#include <future>
#include <memory>
#include <string>
#include <utility>

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
  std::promise<Outcome> outcome;

  void complete(const Outcome& how) override { outcome.set_value(how); }
  OutcomeKind wait() { return outcome.get_future().get().kind; }
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
