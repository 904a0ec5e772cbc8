// Ranks: event loops in one process. A thread that waits handles the events.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "comm/transport/tcp/awaited_message.h"
#include "comm/transport/tcp/tcp_transport.h"
#include "event_loop_fixture.h"

namespace tutti::test::waiters_test {
namespace {

using namespace event_loops;

Deadline in_time() {
  return Clock::now() + 20s;
}

class Waiters : public testing::Test {
 protected:
  EventLoop& zero() { return zero_->loop(); }
  EventLoop& one() { return one_->loop(); }
  TestMessagePtr receive(std::uint64_t tag = 0) {
    auto message = make_message(false, 1, "----", tag);
    message->callbacks = false;
    zero().post(message);
    return message;
  }
  /// Rank 1 sends.
  void send(std::uint64_t tag = 0) { one().post(make_message(true, 0, "text", tag)); }
  /// Handles the events of rank 0 until `is_over()`. Calls `begun` first, when no other thread handles them.
  void serve(const std::function<void()>& begun, const std::function<bool()>& is_over, Deadline until = in_time()) {
    bool serves = false;
    const auto is_over_now = [&] {
      if (!std::exchange(serves, true)) begun();
      return is_over();
    };
    while (!serves) zero().serve(is_over_now, until);
  }
  void check_that_the_loop_has_the_events() {
    const auto received = receive(99);
    send(99);
    EXPECT_EQ(received->wait(), OutcomeKind::completed);
    EXPECT_NE(received->completed_by, std::this_thread::get_id());
  }

  TestEndpoints endpoints_{2};
  std::shared_ptr<Endpoint> zero_ = endpoints_.make(0);
  std::shared_ptr<Endpoint> one_ = endpoints_.make(1);
};

TEST_F(Waiters, AWaiterHandlesTheEventsAndHandsThemBack) {
  check_that_the_loop_has_the_events();
  for (int round = 0; round < 100; ++round) {
    const auto received = receive();
    serve([&] { send(); }, [&] { return received->has_ended(); });
    ASSERT_EQ(received->wait(), OutcomeKind::completed);
    ASSERT_EQ(received->completed_by, std::this_thread::get_id());
    ASSERT_EQ(received->text, "text");
  }
  check_that_the_loop_has_the_events();
}

TEST_F(Waiters, AMessageThatIsLongerThanTheSocketsBuffers) {
  const std::string text(20'000'000, 'x');
  const auto received = make_message(false, 1, std::string(text.size(), '-'));
  received->callbacks = false;
  zero().post(received);
  const auto begin = [&] { one().post(make_message(true, 0, text)); };
  serve(begin, [&] { return received->has_ended(); });
  EXPECT_EQ(received->wait(), OutcomeKind::completed);
  EXPECT_TRUE(received->text == text);
}

// The callback of a message may make calls, and a waiting thread is in one.
TEST_F(Waiters, ALoopRunsTheCallbacksOfMessagesThatAWaiterReceives) {
  check_that_the_loop_has_the_events();
  const auto with_callback = make_message(false, 1, "----", 1);
  zero().post(with_callback);
  const auto received = receive(2);
  const auto begin = [&] {
    send(1);
    send(2);
  };
  serve(begin, [&] { return received->has_ended(); });
  EXPECT_EQ(received->completed_by, std::this_thread::get_id());
  EXPECT_EQ(with_callback->wait(), OutcomeKind::completed);
  EXPECT_NE(with_callback->completed_by, std::this_thread::get_id());
  EXPECT_EQ(with_callback->text, "text");
}

// The loop's thread, which otherwise writes long messages, runs the callback.
TEST_F(Waiters, ACallbackMayWaitForALongMessageThatItSends) {
  check_that_the_loop_has_the_events();
  std::string text(100'000, 'x');
  const auto awaited = std::make_shared<AwaitedMessage>(zero());
  awaited->is_send = true;
  awaited->rank = 1;
  awaited->channel = channel;
  awaited->memory = std::as_writable_bytes(std::span(text));
  std::optional<Outcome> outcome;
  const auto first = make_message(true, 1, text);
  first->callback = [&] {
    zero().post(awaited);
    outcome = awaited->wait_until(in_time());
  };
  zero().post(first);
  EXPECT_EQ(first->wait(), OutcomeKind::completed);
  EXPECT_TRUE(outcome);
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
  serve([&] { first_serves.set_value(); }, [&] { return received->has_ended(); });
  EXPECT_EQ(received->wait(), OutcomeKind::completed);
}

TEST_F(Waiters, TheLoopHandlesTheEventsAfterADeadline) {
  check_that_the_loop_has_the_events();
  serve([] {}, [] { return false; }, Clock::now() + 5ms);
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
  serve([&] { serves.set_value(); }, [&] { return is_over.load(); }, Clock::now() + 1h);
  check_that_the_loop_has_the_events();
}

TEST_F(Waiters, DestroyingTheEndpointEndsTheWaitForEvents) {
  const auto loop = zero().shared_from_this();
  std::promise<void> serves;
  const auto destroys = std::async(std::launch::async, [&] {
    serves.get_future().wait();
    zero_.reset();
  });
  serve([&] { serves.set_value(); }, [] { return false; }, Clock::now() + 1h);
}

/// Two ranks whose transports wait for messages.
class WaitingChannels : public Waiters {
 protected:
  static std::shared_ptr<Transport> make_transport(int rank, const std::shared_ptr<Endpoint>& endpoint) {
    const auto monitor = std::make_shared<HeartbeatMonitor>(
        std::make_shared<JobEvents>(0), HeartbeatMonitorOptions{.rank = rank, .node_of_rank = {0, 0}});
    return make_tcp_transport({}, endpoint, rank, GroupHealth(monitor, {0, 1}));
  }
  std::unique_ptr<Transfer> post_receive(std::uint64_t number = 0) {
    return transports_[0]->post_receive(1, {.operation = number}, {});
  }
  void send(std::uint64_t number = 0) { transports_[1]->post_send(0, {.operation = number}, {})->wait(in_time()); }
  /// A thread that receives. Returns once it is about to wait.
  std::future<void> wait_in_thread(std::uint64_t number = 0) {
    std::promise<void> waits;
    auto waiter = std::async(std::launch::async, [&] {
      const auto transfer = post_receive(number);
      waits.set_value();
      transfer->wait(in_time());
    });
    waits.get_future().wait();
    return waiter;
  }

  std::array<std::shared_ptr<Transport>, 2> transports_{make_transport(0, zero_), make_transport(1, one_)};
};

TransferError::Kind failure_of(std::future<void> wait) {
  // Without an interrupt the thread looks again after 10 s, when it logs a warning.
  if (wait.wait_for(8s) != std::future_status::ready) ADD_FAILURE() << "the wait goes on";
  try {
    wait.get();
  } catch (const TransferError& error) {
    return error.kind();
  }
  throw std::logic_error("the wait has not failed");
}

TEST_F(WaitingChannels, ReceiveInTwoThreads) {
  constexpr std::uint64_t count = 500;
  const auto receive_from = [&](std::uint64_t first) {
    for (std::uint64_t number = first; number < first + count; ++number) post_receive(number)->wait(in_time());
  };
  auto one = std::async(std::launch::async, [&] { receive_from(0); });
  auto two = std::async(std::launch::async, [&] { receive_from(count); });
  for (std::uint64_t number = 0; number < count; ++number) {
    send(number);
    send(count + number);
  }
  one.get();
  two.get();
}

// As in the destructor of a communicator, which the callback may own.
TEST_F(WaitingChannels, ACallbackMayWaitForAThreadThatWaits) {
  check_that_the_loop_has_the_events();
  std::future<void> wait;
  const auto received = make_message(false, 1, "----", 1);
  received->callback = [&] {
    wait = wait_in_thread();
    send();
    wait.wait();
  };
  zero().post(received);
  Waiters::send(1);
  EXPECT_EQ(received->wait(), OutcomeKind::completed);
  wait.get();
}

TEST_F(WaitingChannels, ACallbackMayWaitForAThreadThatSendsALongMessage) {
  check_that_the_loop_has_the_events();
  std::vector<std::byte> sent(100'000);
  std::vector<std::byte> arrived(sent.size());
  const auto arrival = transports_[1]->post_receive(0, {.operation = 5}, {arrived.data(), arrived.size(), nullptr});
  const auto received = make_message(false, 1, "----", 1);
  received->callback = [&] {
    auto thread = std::async(std::launch::async, [&] {
      transports_[0]->post_send(1, {.operation = 5}, {sent.data(), sent.size(), nullptr})->wait(in_time());
    });
    EXPECT_NO_THROW(thread.get());
  };
  zero().post(received);
  Waiters::send(1);
  EXPECT_EQ(received->wait(), OutcomeKind::completed);
  arrival->wait(in_time());
}

TEST_F(WaitingChannels, AWaitEndsAtItsDeadline) {
  auto wait = std::async(std::launch::async, [&] { post_receive()->wait(Clock::now() + 5ms); });
  EXPECT_EQ(failure_of(std::move(wait)), TransferError::Kind::timeout);
}

TEST_F(WaitingChannels, ClosingEndsAWait) {
  auto wait = wait_in_thread();
  transports_[0]->close();
  EXPECT_EQ(failure_of(std::move(wait)), TransferError::Kind::connection_closed);
}

TEST_F(WaitingChannels, AClosingPeerEndsAWait) {
  const auto first = post_receive(1);
  send(1);
  first->wait(in_time());
  auto wait = wait_in_thread();
  transports_[1]->close();
  EXPECT_EQ(failure_of(std::move(wait)), TransferError::Kind::connection_closed);
}

TEST_F(WaitingChannels, AReceiveIsCancelledWhileAnotherIsAwaited) {
  auto wait = wait_in_thread(2);
  for (int round = 0; round < 100; ++round) post_receive(1);
  send(2);
  wait.get();
}

}  // namespace
}  // namespace tutti::test::waiters_test
