#pragma once
// A message of a collective, for which a thread waits.
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>

#include "comm/transport/tcp/event_loop.h"

namespace tutti::comm {

/// Thread safe, for one thread that waits.
class AwaitedMessage final : public Message {
 public:
  /// `loop` outlives the message's time in it.
  explicit AwaitedMessage(EventLoop& loop) : loop_(loop) {}

  void complete(const Outcome& outcome) override;
  bool has_callbacks() const override { return false; }
  /// nullopt while the message is in flight.
  std::optional<Outcome> outcome() const;
  /// Handles the events of the sockets meanwhile if no other thread does. Returns the outcome; nullopt at the deadline
  /// and after wake().
  std::optional<Outcome> wait_until(Deadline until);
  void wait_for_outcome();
  /// Ends the current wait_until(), or the next one.
  void wake();

 private:
  void notify();

  EventLoop& loop_;
  mutable std::mutex mutex_;  // the loop's mutex may be held
  std::condition_variable changed_;
  std::optional<Outcome> outcome_;
  bool woken_ = false;
  std::optional<std::thread::id> server_;  // the thread that waits in EventLoop::serve()
};

}  // namespace tutti::comm
