#include "comm/mesh/waits.h"

#include <c10/util/ScopeExit.h>

#include <algorithm>
#include <utility>

#include "core/thread_name.h"

namespace tutti::comm {
namespace {

// What is urgent hurries: a rank that is given up, a channel that is closed here. A look finds that another rank has
// let go of a channel and lives on.
constexpr auto pause_of_looks = std::chrono::milliseconds(200);
// A message that has ended when its wait is ended looks as if it had not. So nobody's wait is ended who has not waited
// for longer than looking takes; and who was kept from looking meanwhile, since cores are few, looks again.
constexpr auto long_enough = std::chrono::milliseconds(1);
constexpr int ends_until_sure = 3;

}  // namespace

Waits::Waits(std::function<void()> look) : look_(std::move(look)), thread_([this] { run(); }) {}

Waits::~Waits() {
  std::unique_lock lock(mutex_);
  over_ = true;
  changed_.notify_all();
  lock.unlock();
  thread_.join();
}

void Waits::hurry() noexcept {
  hurries_ = true;
  changed_.notify_all();
}

void Waits::wait(UnderWay& message, Awaited awaited) {
  const auto now = Clock::now();
  std::unique_lock lock(mutex_);
  const auto wait = waits_.insert(waits_.end(), Wait(message, std::move(awaited), now));
  const auto forget = c10::make_scope_exit([&] { waits_.erase(wait); });  // with the lock held
  int ends = 0;
  for (auto why = wait->awaited.why_to_end(now);; why = wait->awaited.why_to_end(Clock::now())) {
    if (why && ends == ends_until_sure) throw TransferError(*why);
    if (why) hurry();
    if (wait_once(lock, *wait)) return;
    ++ends;
  }
}

bool Waits::wait_once(std::unique_lock<std::mutex>& lock, Wait& wait) {
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
Deadline Waits::look_at_waits(Deadline now) {
  auto next = now + pause_of_looks;
  for (Wait& wait : waits_) {
    if (wait.entered != wait.aborted && wait.awaited.why_to_end(now)) {
      if (now >= wait.entered_at + long_enough) {
        wait.aborted = wait.entered;
        wait.message->abort();
      } else {
        next = std::min(next, wait.entered_at + long_enough);
      }
    }
    if (wait.line.due(now)) wait.awaited.say_so(wait.line.waited(now));
    if (wait.awaited.deadline > now) next = std::min(next, wait.awaited.deadline);
  }
  return next;
}

void Waits::run() {
  name_this_thread("tutti-mesh");
  std::unique_lock lock(mutex_);
  while (!over_) {
    const auto next = look_at_waits(Clock::now());
    changed_.wait_until(lock, next, [&] { return over_ || hurries_; });
    hurries_ = false;
    lock.unlock();
    look_();
    lock.lock();
  }
}

}  // namespace tutti::comm
