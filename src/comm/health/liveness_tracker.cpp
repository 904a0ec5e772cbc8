#include "comm/health/liveness_tracker.h"

#include <algorithm>
#include <utility>

namespace tutti::comm {

LivenessTracker::LivenessTracker(const std::vector<int>& ranks, int store_owner,
                                 std::chrono::milliseconds heartbeat_timeout, Deadline now)
    : store_owner_(store_owner),
      heartbeat_timeout_(heartbeat_timeout),
      requested_at_(now),
      last_reply_(now),
      next_check_(now) {
  for (const int rank : ranks) peers_.push_back({.rank = rank, .heartbeat = 0, .changed = now});
}

void LivenessTracker::on_request(Deadline now) {
  requested_at_ = now;
  awaits_reply_ = true;
}

void LivenessTracker::on_heartbeats(const std::vector<std::int64_t>& heartbeats, Deadline when) {
  last_reply_ = std::max(last_reply_, when);
  for (std::size_t i = 0; i < peers_.size() && i < heartbeats.size(); ++i) {
    if (std::exchange(peers_[i].heartbeat, heartbeats[i]) != heartbeats[i]) peers_[i].changed = when;
  }
}

bool LivenessTracker::on_store_lost() {
  awaits_reply_ = true;
  const auto owner = std::ranges::find(peers_, store_owner_, &Peer::rank);
  return owner_exited_ || (owner != peers_.end() && owner->heartbeat == exited_heartbeat);
}

LivenessTracker::Suspects LivenessTracker::check(Deadline now) {
  constexpr auto scheduling_slack = std::chrono::milliseconds(150);
  const auto stopped = now - std::exchange(next_check_, now) - scheduling_slack;
  if (stopped > Clock::duration::zero()) {
    requested_at_ += stopped;
    for (Peer& peer : peers_) peer.changed += stopped;
  }
  return silent_for(heartbeat_timeout_, now);
}

LivenessTracker::Suspects LivenessTracker::silent_for(Clock::duration time, Deadline now) const {
  if (time_without_reply(now) >= time) return {.ranks = {}, .store = true};
  Suspects suspects;
  for (const Peer& peer : peers_) {
    if (time_without_heartbeat(peer) >= time) suspects.ranks.push_back(peer.rank);
  }
  std::ranges::sort(suspects.ranks);
  return suspects;
}

bool LivenessTracker::is_suspect(Deadline now) const {
  const auto is_late = [&](Clock::duration elapsed) {
    return elapsed >= heartbeat_timeout_ / 2 && elapsed < 2 * heartbeat_timeout_;
  };
  return is_late(time_without_reply(now)) ||
         std::ranges::any_of(peers_, [&](const Peer& peer) { return is_late(time_without_heartbeat(peer)); });
}

Clock::duration StoppedDuration::check(Deadline now, bool stopped) {
  const auto passed = now - std::exchange(last_, now);
  if (!stopped) return stopped_ = Clock::duration::zero();
  stopped_ += is_stopped() ? std::min<Clock::duration>(passed, 2 * close_poll_interval)
                           : std::min<Clock::duration>(passed, poll_interval) / 2;
  return stopped_;
}

std::chrono::milliseconds heartbeat_interval(int groups) {
  constexpr int groups_at_shortest = 64;
  constexpr std::chrono::milliseconds shortest(250);
  return std::max(shortest, shortest * groups / groups_at_shortest);
}

}  // namespace tutti::comm
