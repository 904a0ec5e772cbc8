#include "comm/standstill/watched_calls.h"

#include <algorithm>

namespace tutti::comm {

void CallingThreads::add(std::thread::id thread) {
  const std::lock_guard lock(mutex_);
  threads_.insert(thread);
}

std::set<std::thread::id> CallingThreads::all() const {
  const std::lock_guard lock(mutex_);
  return threads_;
}

void WatchedCalls::called(const Operation& operation, bool on_own_thread) {
  const auto caller = std::this_thread::get_id();
  const std::lock_guard lock(mutex_);
  calls_ = operation.number + 1;
  Text& text = texts_[operation.number % texts];
  text.what = operation.what;
  text.name = operation.name;
  if (on_own_thread || caller == last_caller_) return;
  last_caller_ = caller;
  callers_->add(caller);
}

WatchedCalls::Inside::Inside(WatchedCalls* calls, std::uint64_t number) : calls_(calls) {
  if (calls_ == nullptr) return;
  calls_->changes_.fetch_add(1, std::memory_order_relaxed);
  auto& places = calls_->inside_;
  for (; place_ < places.size(); ++place_) {
    std::uint64_t nobody = 0;
    if (!places[place_].call.compare_exchange_strong(nobody, number + 1)) continue;
    places[place_].thread.store(std::this_thread::get_id(), std::memory_order_release);
    return;
  }
}

WatchedCalls::Inside::~Inside() {
  if (calls_ == nullptr) return;
  if (place_ < calls_->inside_.size()) {
    calls_->inside_[place_].thread.store({}, std::memory_order_relaxed);
    calls_->inside_[place_].call.store(0, std::memory_order_release);
  }
  calls_->changes_.fetch_add(1, std::memory_order_release);
}

WatchedCalls::Awaiting::Awaiting(WatchedCalls* calls) : calls_(calls) {
  if (calls_ == nullptr) return;
  const std::lock_guard lock(calls_->mutex_);
  calls_->awaiting_.insert(std::this_thread::get_id());
}

WatchedCalls::Awaiting::~Awaiting() {
  if (calls_ == nullptr) return;
  calls_->changes_.fetch_add(1, std::memory_order_relaxed);
  const std::lock_guard lock(calls_->mutex_);
  calls_->awaiting_.erase(calls_->awaiting_.find(std::this_thread::get_id()));
}

void WatchedCalls::set_ending(Ending* ending) {
  const std::lock_guard lock(ending_mutex_);
  ending_ = ending;
}

void WatchedCalls::foretell(const std::string& why) {
  const std::lock_guard lock(ending_mutex_);
  if (ending_ != nullptr) ending_->foretell(why);
}

void WatchedCalls::end() {
  const std::lock_guard lock(ending_mutex_);
  if (ending_ != nullptr) ending_->end();
}

WatchedCalls::Seen WatchedCalls::look() const {
  Seen seen;
  seen.changes = changes_.load(std::memory_order_acquire);
  const std::lock_guard lock(mutex_);
  seen.channel = {.calls = calls_, .members = job_ranks_};
  seen.awaiting = {awaiting_.begin(), awaiting_.end()};
  for (const Place& place : inside_) {
    const auto thread = place.thread.load(std::memory_order_acquire);
    const auto call = place.call.load(std::memory_order_relaxed);
    if (call == 0 || thread == std::thread::id() || calls_ - call >= texts) continue;
    const auto number = call - 1;
    const Text& text = texts_[number % texts];
    const Operation operation{.number = number, .what = text.what, .name = text.name};
    seen.inside[thread] = {.channel = channel_, .number = number, .text = operation.describe()};
  }
  return seen;
}

const Stand::Wait* WatchedCalls::Seen::wait_of(std::thread::id thread) const {
  const auto own = inside.find(thread);
  if (own != inside.end()) return &own->second;
  if (inside.empty() || !awaiting.contains(thread)) return nullptr;
  return &std::ranges::min_element(inside, {}, [](const auto& other) { return other.second.number; })->second;
}

}  // namespace tutti::comm
