#pragma once
// Tracks which ranks have missed heartbeats. No I/O.
//
// Groups of local peers (local_peers.h) add heartbeats to counters at the store (heartbeat_pairs.h), and read those of
// others. A counter that does not change means that its machine has failed; a store that does not answer, that its
// server's machine has. Heartbeats are sent by a background thread, so a slow training thread is not reported as
// failed.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "comm/backend/transfer_error.h"

namespace tutti::comm {

/// The heartbeat of a group of local peers that has announced its exit: its missed heartbeats are not reported.
inline constexpr auto exited_heartbeat = std::numeric_limits<std::int64_t>::min();

class LivenessTracker {
 public:
  /// Tracks groups of local peers, by their first ranks. `store_owner` serves the store; -1 if no rank does. A group
  /// has failed after `heartbeat_timeout` without a heartbeat.
  LivenessTracker(const std::vector<int>& ranks, int store_owner, std::chrono::milliseconds heartbeat_timeout,
                  Deadline now);

  /// A request of this rank to the store goes out, and is answered.
  void on_request(Deadline now);
  void on_reply() { awaits_reply_ = false; }
  /// The reply of the store at `when` to this rank or to a local peer: the numbers of the ranks, in the order in which
  /// they were given.
  void on_heartbeats(const std::vector<std::int64_t>& heartbeats, Deadline when);

  /// The store has ended, without an answer. Returns whether its server had announced its exit, so that this is no
  /// failure.
  bool on_store_lost();
  void on_owner_exit() { owner_exited_ = true; }

  struct Suspects {
    std::vector<int> ranks;  ///< silent for too long, ascending
    bool store = false;      ///< has not answered for too long: nothing is known of the ranks then
  };
  Suspects check(Deadline now);
  /// The ranks and the store that have been silent for `time`, as of the last check().
  Suspects silent_for(Clock::duration time, Deadline now) const;
  /// Sets the time of the next check(). A process that checks much later was stopped itself: the time in between does
  /// not count.
  void set_next_check(Deadline next_check) { next_check_ = next_check; }
  /// Whether more than half of the heartbeat timeout of a peer has passed, but not all of it. The caller then polls
  /// faster.
  bool is_suspect(Deadline now) const;

 private:
  struct Peer {
    int rank = 0;
    std::int64_t heartbeat = 0;
    Deadline changed;
  };
  Clock::duration time_without_reply(Deadline now) const {
    return awaits_reply_ ? now - requested_at_ : Clock::duration::zero();
  }
  // Only until the last answer has any of them been silent.
  Clock::duration time_without_heartbeat(const Peer& peer) const {
    return peer.heartbeat == exited_heartbeat ? Clock::duration::zero() : last_reply_ - peer.changed;
  }

  std::vector<Peer> peers_;
  int store_owner_;
  bool owner_exited_ = false;
  std::chrono::milliseconds heartbeat_timeout_;
  Deadline requested_at_;
  bool awaits_reply_ = false;  // for an answer
  Deadline last_reply_;        // the last answer
  Deadline next_check_;
};

/// For how long a process of this machine has been stopped, by looks that are rare until one of them sees it. Pure.
class StoppedDuration {
 public:
  static constexpr auto poll_interval = std::chrono::milliseconds(500);
  static constexpr auto close_poll_interval = std::chrono::milliseconds(50);  // once it is stopped

  explicit StoppedDuration(Deadline now) : last_(now) {}

  /// Returns for how long, as far as is known. It happened between two looks: the middle is taken. Looks that are far
  /// apart once it is stopped do not count in full, since the polling process may have been stopped with it.
  Clock::duration check(Deadline now, bool stopped);
  bool is_stopped() const { return stopped_ > Clock::duration::zero(); }
  /// For how long it has been stopped, at the last check().
  Clock::duration value() const { return stopped_; }
  /// Whether it has been stopped for `heartbeat_timeout`. With `poll_fast` a shorter time is enough: the rank that
  /// waits for the process has detected the stop and may leave.
  bool is_expired(Clock::duration heartbeat_timeout, bool poll_fast) const {
    const auto at_least = std::max<Clock::duration>(heartbeat_timeout - poll_interval / 2, heartbeat_timeout / 2);
    return stopped_ >= (poll_fast ? at_least : heartbeat_timeout);
  }

 private:
  Deadline last_;
  Clock::duration stopped_ = Clock::duration::zero();
};

/// The interval between two heartbeats of one of `groups` groups of local peers: 250 ms for up to 64 of them, then in
/// proportion to their number. So the store serves at most some 500 requests a second, two for each heartbeat.
std::chrono::milliseconds heartbeat_interval(int groups);

}  // namespace tutti::comm
