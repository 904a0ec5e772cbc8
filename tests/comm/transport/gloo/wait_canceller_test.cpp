// Ranks: none. The events that end a wait.
#include "comm/transport/gloo/wait_canceller.h"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>

namespace tutti::test::wait_canceller_test {
namespace {

using namespace tutti::comm;
using Kind = TransferError::Kind;
using std::chrono::hours;
using std::chrono::milliseconds;

// As in Gloo, wait() returns false once after an abort, even if the message has ended.
class Message final : public PendingMessage {
 public:
  bool wait() override {
    std::unique_lock lock(mutex_);
    ++waits;
    changed_.wait(lock, [&] { return ended_ || aborted_ || broken_; });
    if (broken_) throw std::runtime_error("connection closed");
    if (std::exchange(aborted_, false)) return false;
    return true;
  }
  void abort() noexcept override {
    const std::lock_guard lock(mutex_);
    aborted_ = true;
    changed_.notify_all();
  }
  void end() { set(ended_); }
  void fail() { set(broken_); }

  std::atomic<int> waits = 0;

 private:
  void set(bool& flag) {
    const std::lock_guard lock(mutex_);
    flag = true;
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool ended_ = false;
  bool aborted_ = false;
  bool broken_ = false;
};

WaitSpec until(Deadline deadline) {
  return {.deadline = deadline,
          .cancel_reason = [deadline](Deadline now) -> std::optional<TransferError> {
            if (now < deadline) return std::nullopt;
            return TransferError(Kind::timeout, {3}, "late");
          },
          .on_slow = [](std::chrono::seconds) {}};
}

void expect_timeout(WaitCanceller& waits, Message& message, Deadline deadline) {
  try {
    waits.wait(message, until(deadline));
    ADD_FAILURE() << "it did not end";
  } catch (const TransferError& error) {
    EXPECT_EQ(error.kind(), Kind::timeout);
    EXPECT_EQ(error.peers(), std::vector<int>{3});
  }
}

TEST(WaitCanceller, EndsWithTheMessage) {
  WaitCanceller waits([] {});
  Message message;
  message.end();
  waits.wait(message, until(Clock::now() + hours(1)));
}

TEST(WaitCanceller, EndsAtTheDeadline) {
  WaitCanceller waits([] {});
  Message message;
  expect_timeout(waits, message, Clock::now() + milliseconds(20));
  // A deadline that has already passed also ends the wait.
  expect_timeout(waits, message, Clock::now() - milliseconds(20));
}

TEST(WaitCanceller, ACompletedMessageNeverTimesOut) {
  WaitCanceller waits([] {});
  for (int time = 0; time < 200; ++time) {
    Message message;
    message.end();
    message.abort();
    waits.wait(message, until(Clock::now() - milliseconds(1)));
    EXPECT_GE(message.waits, 2);
  }
}

TEST(WaitCanceller, AnAbortWithoutAReasonIsIgnored) {
  WaitCanceller waits([] {});
  Message message;
  message.abort();
  std::thread ends([&] {
    while (message.waits < 2) std::this_thread::yield();
    message.end();
  });
  waits.wait(message, until(Clock::now() + hours(1)));
  ends.join();
}

TEST(WaitCanceller, EndsWhenTheCheckFindsAReason) {
  std::atomic<bool> gone = false;
  Message message;
  WaitCanceller waits([&] {
    if (message.waits > 0) gone = true;
  });
  auto spec = until(Clock::now() + hours(1));
  spec.cancel_reason = [&](Deadline) -> std::optional<TransferError> {
    if (!gone) return std::nullopt;
    return TransferError(Kind::connection_closed, {1}, "gone");
  };
  try {
    waits.wait(message, spec);
    ADD_FAILURE() << "it did not end";
  } catch (const TransferError& error) {
    EXPECT_EQ(error.kind(), Kind::connection_closed);
  }
}

TEST(WaitCanceller, RethrowsAConnectionError) {
  WaitCanceller waits([] {});
  Message message;
  message.fail();
  EXPECT_THROW(waits.wait(message, until(Clock::now() + hours(1))), std::runtime_error);
}

}  // namespace
}  // namespace tutti::test::wait_canceller_test
