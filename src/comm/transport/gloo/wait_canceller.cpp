#include "comm/transport/gloo/wait_canceller.h"

#include <c10/util/ScopeExit.h>

#include <algorithm>
#include <utility>

#include "core/thread_name.h"

namespace tutti::comm {
namespace {

// Urgent events call wake(): a failed rank, a channel that this rank closes. The periodic check detects that another
// rank has closed a channel and keeps running.
constexpr auto wait_check_interval = std::chrono::milliseconds(200);
// A message that has ended when its wait is ended looks as if it had not. So a wait is aborted only
// after this minimum time. It is aborted several times before it is cancelled, because a busy machine may delay the
// thread that checks.
constexpr auto min_wait_before_abort = std::chrono::milliseconds(1);
constexpr int aborts_until_cancelled = 3;

}  // namespace

WaitCanceller::WaitCanceller(std::function<void()> before_check)
    : before_check_(std::move(before_check)), thread_([this] { run(); }) {}

WaitCanceller::~WaitCanceller() {
  std::unique_lock lock(mutex_);
  stopping_ = true;
  changed_.notify_all();
  lock.unlock();
  thread_.join();
}

void WaitCanceller::wake() noexcept {
  wake_requested_ = true;
  changed_.notify_all();
}

void WaitCanceller::wait(PendingMessage& message, WaitSpec spec) {
  const auto now = Clock::now();
  std::unique_lock lock(mutex_);
  const auto wait = waits_.insert(waits_.end(), Wait(message, std::move(spec), now));
  const auto erase_wait = c10::make_scope_exit([&] { waits_.erase(wait); });  // with the lock held
  int aborts = 0;
  for (auto reason = wait->spec.cancel_reason(now);; reason = wait->spec.cancel_reason(Clock::now())) {
    if (reason && aborts == aborts_until_cancelled) throw TransferError(*reason);
    if (reason) wake();
    if (wait_once(lock, *wait)) return;
    ++aborts;
  }
}

bool WaitCanceller::wait_once(std::unique_lock<std::mutex>& lock, Wait& wait) {
  ++wait.entered;
  wait.entered_at = Clock::now();
  lock.unlock();
  bool ended = false;
  try {
    ended = wait.message->wait();
  } catch (...) {
    lock.lock();
    throw;
  }
  lock.lock();
  return ended;
}

// Returns when to look again.
Deadline WaitCanceller::check_waits(Deadline now) {
  auto next = now + wait_check_interval;
  for (Wait& wait : waits_) {
    if (wait.entered != wait.aborted && wait.spec.cancel_reason(now)) {
      if (now >= wait.entered_at + min_wait_before_abort) {
        wait.aborted = wait.entered;
        wait.message->abort();
      } else {
        next = std::min(next, wait.entered_at + min_wait_before_abort);
      }
    }
    if (wait.slow_warning.due(now)) wait.spec.on_slow(wait.slow_warning.waited(now));
    if (wait.spec.deadline > now) next = std::min(next, wait.spec.deadline);
  }
  return next;
}

void WaitCanceller::run() {
  name_this_thread("tutti-gloo");
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    const auto next = check_waits(Clock::now());
    changed_.wait_until(lock, next, [&] { return stopping_ || wake_requested_; });
    wake_requested_ = false;
    lock.unlock();
    before_check_();
    lock.lock();
  }
}

}  // namespace tutti::comm
