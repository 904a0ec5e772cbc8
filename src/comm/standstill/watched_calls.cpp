#include "comm/standstill/watched_calls.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <string>

namespace tutti::comm {
namespace {

// Of the system, since it can be asked whether such a thread still runs.
pid_t this_thread() {
  thread_local const auto id = static_cast<pid_t>(::syscall(SYS_gettid));
  return id;
}

bool has_ended(pid_t thread) {
  return ::access(("/proc/self/task/" + std::to_string(thread)).c_str(), F_OK) != 0;
}

}  // namespace

void CallingThreads::add(pid_t thread) {
  const std::lock_guard lock(mutex_);
  threads_.insert(thread);
}

std::set<pid_t> CallingThreads::alive() {
  const std::lock_guard lock(mutex_);
  std::erase_if(threads_, has_ended);
  return threads_;
}

void WatchedCalls::called(const Operation& operation, bool on_own_thread) {
  const auto caller = this_thread();
  callers_->change();
  const std::lock_guard lock(mutex_);
  calls_ = operation.number + 1;
  Text& text = texts_[operation.number % texts];
  text.what = operation.what;
  text.name = operation.name;
  text.where = operation.where;
  if (on_own_thread || caller == last_caller_) return;
  last_caller_ = caller;
  callers_->add(caller);
}

WatchedCalls::Inside::Inside(WatchedCalls* calls, std::uint64_t number) : calls_(calls) {
  if (calls_ == nullptr) return;
  calls_->callers_->change();
  auto& places = calls_->inside_;
  for (; place_ < places.size(); ++place_) {
    std::uint64_t nobody = 0;
    if (!places[place_].call.compare_exchange_strong(nobody, number + 1)) continue;
    places[place_].thread.store(this_thread(), std::memory_order_release);
    return;
  }
}

WatchedCalls::Inside::~Inside() {
  if (calls_ == nullptr) return;
  if (place_ < calls_->inside_.size()) {
    calls_->inside_[place_].thread.store(0, std::memory_order_relaxed);
    calls_->inside_[place_].call.store(0, std::memory_order_release);
  }
  calls_->callers_->change(std::memory_order_release);
}

WatchedCalls::Awaiting::Awaiting(WatchedCalls* calls) : calls_(calls) {
  if (calls_ == nullptr) return;
  const std::lock_guard lock(calls_->mutex_);
  calls_->awaiting_.insert(this_thread());
}

WatchedCalls::Awaiting::~Awaiting() {
  if (calls_ == nullptr) return;
  calls_->callers_->change();
  const std::lock_guard lock(calls_->mutex_);
  calls_->awaiting_.erase(calls_->awaiting_.find(this_thread()));
}

void WatchedCalls::set_owner(Owner* owner) {
  const std::lock_guard lock(owner_mutex_);
  owner_ = owner;
}

bool WatchedCalls::stands_still(bool still) {
  const std::lock_guard lock(owner_mutex_);
  return owner_ == nullptr || owner_->stands_still(still);
}

void WatchedCalls::foretell(const std::string& why) {
  const std::lock_guard lock(owner_mutex_);
  if (owner_ != nullptr) owner_->foretell(why);
}

void WatchedCalls::end() {
  const std::lock_guard lock(owner_mutex_);
  if (owner_ != nullptr) owner_->end();
}

WatchedCalls::Seen WatchedCalls::look() const {
  Seen seen;
  const std::lock_guard lock(mutex_);
  seen.channel = {.calls = calls_, .members = job_ranks_};
  seen.awaiting = {awaiting_.begin(), awaiting_.end()};
  for (const Place& place : inside_) {
    const auto thread = place.thread.load(std::memory_order_acquire);
    const auto call = place.call.load(std::memory_order_relaxed);
    if (call == 0 || thread == 0 || calls_ - call >= texts) continue;
    const auto number = call - 1;
    const Text& text = texts_[number % texts];
    const Operation operation{.number = number, .what = text.what, .name = text.name, .where = text.where};
    seen.inside[thread] = {.channel = channel_, .number = number, .text = operation.describe_with_place()};
  }
  return seen;
}

const Stand::Wait* WatchedCalls::Seen::wait_of(pid_t thread) const {
  const auto own = inside.find(thread);
  if (own != inside.end()) return &own->second;
  if (inside.empty() || !awaiting.contains(thread)) return nullptr;
  return &std::ranges::min_element(inside, {}, [](const auto& other) { return other.second.number; })->second;
}

}  // namespace tutti::comm
