#include "comm/transport/tcp/awaited_message.h"

namespace tutti::comm {

void AwaitedMessage::complete(const Outcome& outcome) {
  owner = nullptr;
  const std::lock_guard lock(mutex_);  // while it notifies: the message may be destroyed afterwards
  outcome_ = outcome;
  notify();
}

std::optional<Outcome> AwaitedMessage::outcome() const {
  const std::lock_guard lock(mutex_);
  return outcome_;
}

std::optional<Outcome> AwaitedMessage::wait_until(Deadline until) {
  std::unique_lock lock(mutex_);
  const auto is_over = [&] { return outcome_ || woken_; };
  if (!is_over()) {
    server_ = std::this_thread::get_id();
    lock.unlock();
    loop_.serve(
        [&] {
          const std::lock_guard again(mutex_);
          return is_over();
        },
        until);
    lock.lock();
    server_ = {};
    changed_.wait_until(lock, until, is_over);
  }
  woken_ = false;
  return outcome_;
}

void AwaitedMessage::wait_for_outcome() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return outcome_.has_value(); });
}

void AwaitedMessage::wake() {
  const std::lock_guard lock(mutex_);
  woken_ = true;
  notify();
}

void AwaitedMessage::notify() {
  changed_.notify_all();
  if (server_ && server_ != std::this_thread::get_id()) loop_.interrupt();
}

}  // namespace tutti::comm
