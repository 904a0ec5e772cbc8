// Ranks: event loops and transports in one process, which share a store. A thread that waits handles the events.
#include <c10/util/ScopeExit.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <array>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "comm/transport/tcp/event_loop.h"
#include "comm/transport/tcp/tcp_transport.h"

namespace tutti::test::waiters_test {
namespace {

using namespace tutti::comm;
using namespace std::chrono_literals;
using OutcomeKind = Outcome::Kind;

Deadline in_time() {
  return Clock::now() + 20s;
}

struct TestMessage final : Message {
  std::string text;
  bool callbacks = false;
  std::thread::id completed_by;
  std::promise<OutcomeKind> outcome;
  std::shared_future<OutcomeKind> ended = outcome.get_future();

  void complete(const Outcome& how) override {
    completed_by = std::this_thread::get_id();
    outcome.set_value(how.kind);
  }
  bool has_callbacks() const override { return callbacks; }
  bool has_ended() const { return ended.wait_for(0s) == std::future_status::ready; }
};
using TestMessagePtr = std::shared_ptr<TestMessage>;

TestMessagePtr make_message(bool is_send, int rank, std::string text, std::uint64_t tag = 0) {
  auto message = std::make_shared<TestMessage>();
  message->is_send = is_send;
  message->rank = rank;
  message->channel = 7;
  message->tag = tag;
  message->text = std::move(text);
  message->memory = std::as_writable_bytes(std::span(message->text));
  message->deadline = in_time();
  return message;
}

class Waiters : public testing::Test {
 protected:
  std::shared_ptr<Endpoint> make_endpoint(int rank) const {
    return std::make_shared<Endpoint>(rendezvous_, rank, [] { return std::string("127.0.0.1"); });
  }
  EventLoop& zero() { return zero_->open(); }
  EventLoop& one() { return one_->open(); }
  TestMessagePtr receive(std::uint64_t tag = 0) {
    auto message = make_message(false, 1, "----", tag);
    zero().post(message);
    return message;
  }
  /// Rank 1 sends.
  void send(std::uint64_t tag = 0) { one().post(make_message(true, 0, "text", tag)); }
  ///
  static std::function<bool()> once_in_serve(const std::function<void()>& action,
                                             const std::function<bool()>& is_over) {
    return [action, is_over, begun = false]() mutable {
      if (!std::exchange(begun, true)) action();
      return is_over();
    };
  }
  void check_that_the_loop_has_the_events() {
    const auto received = receive(99);
    send(99);
    EXPECT_EQ(received->ended.get(), OutcomeKind::completed);
    EXPECT_NE(received->completed_by, std::this_thread::get_id());
  }

  const Rendezvous rendezvous_{.store = c10::make_intrusive<c10d::HashStore>(), .store_owner = -1, .secret = nullptr};
  std::shared_ptr<Endpoint> zero_ = make_endpoint(0);
  std::shared_ptr<Endpoint> one_ = make_endpoint(1);
};

TEST_F(Waiters, AWaiterHandlesTheEventsAndHandsThemBack) {
  check_that_the_loop_has_the_events();
  for (int round = 0; round < 100; ++round) {
    const auto received = receive();
    zero().serve(once_in_serve([&] { send(); }, [&] { return received->has_ended(); }), in_time());
    ASSERT_EQ(received->ended.get(), OutcomeKind::completed);
    ASSERT_EQ(received->completed_by, std::this_thread::get_id());
    ASSERT_EQ(received->text, "text");
  }
  check_that_the_loop_has_the_events();
}

TEST_F(Waiters, AMessageThatIsLongerThanTheSocketsBuffers) {
  const std::string text(20'000'000, 'x');
  const auto received = make_message(false, 1, std::string(text.size(), '-'));
  zero().post(received);
  const auto begin = [&] { one().post(make_message(true, 0, text)); };
  zero().serve(once_in_serve(begin, [&] { return received->has_ended(); }), in_time());
  EXPECT_EQ(received->ended.get(), OutcomeKind::completed);
  EXPECT_TRUE(received->text == text);
}

// The callback of a message may make calls, and a waiting thread is in one.
TEST_F(Waiters, ALoopRunsTheCallbacksOfMessagesThatAWaiterReceives) {
  check_that_the_loop_has_the_events();
  const auto with_callback = make_message(false, 1, "----", 1);
  with_callback->callbacks = true;
  zero().post(with_callback);
  const auto received = receive(2);
  const auto begin = [&] {
    send(1);
    send(2);
  };
  zero().serve(once_in_serve(begin, [&] { return received->has_ended(); }), in_time());
  EXPECT_EQ(received->completed_by, std::this_thread::get_id());
  EXPECT_EQ(with_callback->ended.get(), OutcomeKind::completed);
  EXPECT_NE(with_callback->completed_by, std::this_thread::get_id());
  EXPECT_EQ(with_callback->text, "text");
}

TEST_F(Waiters, OneOfTwoWaitersHandlesTheEvents) {
  check_that_the_loop_has_the_events();
  const auto received = receive();
  std::promise<void> first_serves;
  const auto second = std::async(std::launch::async, [&] {
    first_serves.get_future().wait();
    zero().serve([] { return false; }, Clock::now() + 1h);  // returns at once
    send();
  });
  zero().serve(once_in_serve([&] { first_serves.set_value(); }, [&] { return received->has_ended(); }), in_time());
  EXPECT_EQ(received->ended.get(), OutcomeKind::completed);
}

TEST_F(Waiters, TheLoopHandlesTheEventsAfterADeadline) {
  check_that_the_loop_has_the_events();
  zero().serve([] { return false; }, Clock::now() + 5ms);
  check_that_the_loop_has_the_events();
}

TEST_F(Waiters, AnInterruptEndsTheWaitForEvents) {
  check_that_the_loop_has_the_events();
  std::promise<void> serves;
  std::atomic<bool> is_over = false;
  const auto interrupts = std::async(std::launch::async, [&] {
    serves.get_future().wait();
    is_over = true;
    zero().interrupt();
  });
  zero().serve(once_in_serve([&] { serves.set_value(); }, [&] { return is_over.load(); }), Clock::now() + 1h);
  check_that_the_loop_has_the_events();
}

TEST_F(Waiters, ClosingTheEndpointEndsTheWaitForEvents) {
  const auto loop = zero().shared_from_this();
  std::promise<void> serves;
  const auto closes = std::async(std::launch::async, [&] {
    serves.get_future().wait();
    zero_.reset();
  });
  loop->serve(once_in_serve([&] { serves.set_value(); }, [] { return false; }), Clock::now() + 1h);
  closes.wait();
}

/// Two ranks whose transports wait for messages.
class WaitingTransports : public Waiters {
 protected:
  void SetUp() override {
    auto other = std::async(std::launch::async, [&] { transports_[1]->connect(); });
    transports_[0]->connect();
    other.get();
  }
  std::shared_ptr<Transport> make_transport(int rank, const std::shared_ptr<Endpoint>& endpoint) const {
    return make_tcp_transport(rendezvous_, endpoint, rank, GroupHealth(nullptr, {0, 1}), 20'000ms);
  }
  std::unique_ptr<Transfer> post_receive(std::uint64_t number = 0) {
    return transports_[0]->post_receive(1, {.operation = number}, memory_);
  }
  void send(std::uint64_t number = 0) { transports_[1]->post_send(0, {.operation = number}, memory_)->wait(in_time()); }

  std::array<std::shared_ptr<Transport>, 2> transports_{make_transport(0, zero_), make_transport(1, one_)};
  std::array<std::byte, 4096> bytes_{};
  const Buffer memory_{.data = bytes_.data(), .size = bytes_.size(), .owner = nullptr};
};

TEST_F(WaitingTransports, ReceiveFromTwoThreads) {
  const auto wait_for = [&](std::uint64_t first) {
    for (std::uint64_t number = 0; number < 500; ++number)
      transports_[0]
          ->post_receive(1, {.operation = first + number}, {.data = nullptr, .size = 0, .owner = nullptr})
          ->wait(in_time());
  };
  auto one = std::async(std::launch::async, [&] { wait_for(0); });
  auto two = std::async(std::launch::async, [&] { wait_for(1000); });
  for (std::uint64_t number = 0; number < 500; ++number) {
    for (const std::uint64_t first : {0, 1000})
      transports_[1]
          ->post_send(0, {.operation = first + number}, {.data = nullptr, .size = 0, .owner = nullptr})
          ->wait(in_time());
  }
  one.get();
  two.get();
}

TEST_F(WaitingTransports, AWaitEndsAtItsDeadline) {
  const auto transfer = post_receive();
  try {
    transfer->wait(Clock::now() + 5ms);
    FAIL();
  } catch (const TransferError& error) {
    EXPECT_EQ(error.kind(), TransferError::Kind::timeout);
  }
}

TEST_F(WaitingTransports, ClosingEndsAWait) {
  std::promise<void> waits;
  auto waiter = std::async(std::launch::async, [&] {
    const auto transfer = post_receive();
    waits.set_value();
    transfer->wait(Clock::now() + 1h);
  });
  waits.get_future().wait();
  transports_[0]->close();
  EXPECT_THROW(waiter.get(), TransferError);
}

// The thread in the wait handles the close frame.
TEST_F(WaitingTransports, AClosingPeerEndsAWait) {
  std::promise<void> waits;
  auto waiter = std::async(std::launch::async, [&] {
    const auto transfer = post_receive();
    waits.set_value();
    transfer->wait(Clock::now() + 1h);
  });
  waits.get_future().wait();
  transports_[1]->close();
  EXPECT_THROW(waiter.get(), TransferError);
}

TEST_F(WaitingTransports, ADestroyedReceiveIsCancelledWhileAnotherIsAwaited) {
  std::promise<void> waits;
  auto waiter = std::async(std::launch::async, [&] {
    const auto transfer = post_receive(2);
    waits.set_value();
    transfer->wait(in_time());
  });
  waits.get_future().wait();
  for (int round = 0; round < 100; ++round) post_receive(1);
  send(2);
  waiter.get();
}

}  // namespace
}  // namespace tutti::test::waiters_test
