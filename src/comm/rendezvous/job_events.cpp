#include "comm/rendezvous/job_events.h"

#include <algorithm>
#include <utility>

namespace tutti::comm {
namespace {

constexpr std::chrono::milliseconds grace_after_exit(1000);

}  // namespace

coordinator::ClientEvents JobEvents::handlers() {
  const auto self = shared_from_this();
  return {.on_failed = [self](const auto& event) { self->on_failed(event); },
          .on_left = [self](const auto& ranks) { self->on_left(ranks); },
          .on_report = [self](const auto& group, int rank, const auto& text) { self->on_report(group, rank, text); },
          .on_deadlock = [self](const auto& deadlock) { self->on_deadlock(deadlock); },
          .on_lost = [self](auto cause, const auto& why) { self->on_lost(cause, why); }};
}

JobStatus JobEvents::status() const {
  const std::lock_guard lock(mutex_);
  const auto now = Clock::now();
  JobStatus status{.failed = {},
                   .is_coordinator_lost = coordinator_lost_at_ && now >= *coordinator_lost_at_,
                   .is_coordinator_unreachable = is_coordinator_unreachable_};
  for (const auto& [rank, failure] : failures_) {
    if (now >= failure.acts_from) status.failed.emplace(rank, failure.cause);
  }
  return status;
}

Deadline JobEvents::next_change() const {
  const std::lock_guard lock(mutex_);
  auto next = Deadline::max();
  const auto add = [&, now = Clock::now()](Deadline time) {
    if (time > now) next = std::min(next, time);
  };
  if (coordinator_lost_at_) add(*coordinator_lost_at_);
  for (const auto& [rank, failure] : failures_) add(failure.acts_from);
  return next;
}

bool JobEvents::has_ended(int rank) const {
  const std::lock_guard lock(mutex_);
  const auto failure = failures_.find(rank);
  const bool has_exited = failure != failures_.end() && failure->second.cause == coordinator::Cause::exited;
  return has_exited || left_.contains(rank);
}

std::optional<std::string> JobEvents::lost_reason() const {
  const std::lock_guard lock(mutex_);
  return lost_reason_;
}

bool JobEvents::has_failed() const {
  const std::lock_guard lock(mutex_);
  return !failures_.empty() || lost_reason_;
}

std::map<int, std::string> JobEvents::reports(const std::string& group) const {
  const std::lock_guard lock(mutex_);
  const auto found = reports_.find(group);
  return found == reports_.end() ? std::map<int, std::string>() : found->second;
}

std::uint64_t JobEvents::version() const {
  const std::lock_guard lock(mutex_);
  return version_;
}

void JobEvents::wait_for_change(std::uint64_t seen, Deadline deadline) const {
  std::unique_lock lock(mutex_);
  changed_.wait_until(lock, deadline, [&] { return version_ != seen; });
}

std::shared_ptr<void> JobEvents::subscribe(Listener listener) {
  const std::lock_guard lock(listeners_mutex_);
  const auto position = listeners_.insert(listeners_.end(), std::move(listener));
  return {this, [self = shared_from_this(), position](void*) {
            const std::lock_guard lock_again(self->listeners_mutex_);
            self->listeners_.erase(position);
          }};
}

// A rank that was stopped may exit later: it has failed already.
void JobEvents::add_failed(int rank, coordinator::Cause cause) {
  const bool has_exited = cause == coordinator::Cause::exited;
  const auto acts_from = Clock::now() + (has_exited ? grace_after_exit : grace_after_exit.zero());
  const auto [known, is_new] = failures_.try_emplace(rank, Failure{.cause = cause, .acts_from = acts_from});
  if (!is_new && has_exited) known->second.cause = cause;
}

void JobEvents::change() {
  ++version_;
  changed_.notify_all();
}

void JobEvents::on_failed(const coordinator::FailedRanks& event) {
  const std::lock_guard listeners_lock(listeners_mutex_);
  if (!event.is_warning) {
    const std::lock_guard lock(mutex_);
    for (const int rank : event.ranks) add_failed(rank, event.cause);
    change();
  }
  for (const Listener& listener : listeners_) {
    if (listener.on_failed) listener.on_failed(event);
  }
}

void JobEvents::on_left(const std::vector<int>& ranks) {
  const std::lock_guard lock(mutex_);
  left_.insert(ranks.begin(), ranks.end());
  change();
}

void JobEvents::on_report(const std::string& group, int rank, const std::string& text) {
  const std::lock_guard lock(mutex_);
  reports_[group][rank] = text;
  change();
}

void JobEvents::on_deadlock(const coordinator::Deadlock& deadlock) {
  const std::lock_guard lock(listeners_mutex_);
  for (const Listener& listener : listeners_) {
    if (listener.on_deadlock) listener.on_deadlock(deadlock);
  }
}

// A rank that has left takes its coordinator with it, and the others may continue without one.
void JobEvents::on_lost(std::optional<coordinator::Cause> cause, const std::string& why) {
  const std::lock_guard listeners_lock(listeners_mutex_);
  {
    const std::lock_guard lock(mutex_);
    lost_reason_ = why;
    if (!left_.contains(owner_)) {
      const bool has_exited = cause == coordinator::Cause::exited;
      coordinator_lost_at_ = Clock::now() + (has_exited ? grace_after_exit : grace_after_exit.zero());
      is_coordinator_unreachable_ = cause == coordinator::Cause::unreachable;
      if (owner_ >= 0 && cause && !is_coordinator_unreachable_) add_failed(owner_, *cause);
    }
    change();
  }
  for (const Listener& listener : listeners_) {
    if (listener.on_lost) listener.on_lost();
  }
}

}  // namespace tutti::comm
