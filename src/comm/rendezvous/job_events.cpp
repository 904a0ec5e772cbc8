#include "comm/rendezvous/job_events.h"

#include <algorithm>
#include <utility>

namespace tutti::comm {
namespace {

constexpr std::chrono::milliseconds grace_after_exit(1000);

void add_ranks(std::vector<int>& known, const std::vector<int>& ranks) {
  known.insert(known.end(), ranks.begin(), ranks.end());
  std::ranges::sort(known);
  const auto duplicates = std::ranges::unique(known);
  known.erase(duplicates.begin(), duplicates.end());
}

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
  auto status = status_;
  const auto now = Clock::now();
  status.is_coordinator_lost = coordinator_lost_at_ && now >= *coordinator_lost_at_;
  for (const auto& [rank, time] : exited_at_) {
    if (now >= time) status.exited.push_back(rank);
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
  for (const auto& [rank, time] : exited_at_) add(time);
  return next;
}

bool JobEvents::has_ended(int rank) const {
  const std::lock_guard lock(mutex_);
  return exited_at_.contains(rank) || std::ranges::binary_search(status_.left, rank);
}

std::optional<std::string> JobEvents::lost_reason() const {
  const std::lock_guard lock(mutex_);
  return lost_reason_;
}

bool JobEvents::has_failed() const {
  const std::lock_guard lock(mutex_);
  const bool has_failed_ranks = !exited_at_.empty() || !status_.stopped.empty() || !status_.unreachable.empty();
  return has_failed_ranks || lost_reason_;
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

void JobEvents::add_exited(const std::vector<int>& ranks) {
  for (const int rank : ranks) exited_at_.try_emplace(rank, Clock::now() + grace_after_exit);
}

void JobEvents::change() {
  ++version_;
  changed_.notify_all();
}

void JobEvents::on_failed(const coordinator::FailedRanks& event) {
  const std::lock_guard listeners_lock(listeners_mutex_);
  if (!event.is_warning) {
    const std::lock_guard lock(mutex_);
    switch (event.cause) {
      case coordinator::Cause::exited:
        add_exited(event.ranks);
        break;
      case coordinator::Cause::stopped:
        add_ranks(status_.stopped, event.ranks);
        break;
      case coordinator::Cause::unreachable:
        add_ranks(status_.unreachable, event.ranks);
        break;
    }
    change();
  }
  for (const Listener& listener : listeners_) {
    if (listener.on_failed) listener.on_failed(event);
  }
}

void JobEvents::on_left(const std::vector<int>& ranks) {
  const std::lock_guard lock(mutex_);
  add_ranks(status_.left, ranks);
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
    if (std::ranges::find(status_.left, owner_) == status_.left.end()) {
      const bool has_exited = cause == coordinator::Cause::exited;
      coordinator_lost_at_ = Clock::now() + (has_exited ? grace_after_exit : grace_after_exit.zero());
      status_.is_coordinator_unreachable = cause == coordinator::Cause::unreachable;
      if (owner_ >= 0 && has_exited) add_exited({owner_});
      if (owner_ >= 0 && cause == coordinator::Cause::stopped) add_ranks(status_.stopped, {owner_});
    }
    change();
  }
  for (const Listener& listener : listeners_) {
    if (listener.on_lost) listener.on_lost();
  }
}

}  // namespace tutti::comm
