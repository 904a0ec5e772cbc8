#pragma once
// Which ranks have not been heard of for long. Pure.
//
// LocalPeerMap (local_peers.h) raise numbers at the store while they live (heartbeat_pairs.h), and see those of others.
// A number that stands still means that its machine does; a store that does not answer, that its holder's machine does.
// Neither says anything of a rank that is merely slow: a thread that does not train raises the number.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "comm/backend/transfer_error.h"

namespace tutti::comm {

/// What is heard of a crew that has left: it will be silent, and nobody minds.
inline constexpr auto exited_heartbeat = std::numeric_limits<std::int64_t>::min();

class LivenessTracker {
 public:
  /// Of crews, by their first ranks. `store_owner` serves the store; -1 where none of the ranks does. They are given up
  /// after `heartbeat_timeout` without a sign.
  LivenessTracker(const std::vector<int>& ranks, int store_owner, std::chrono::milliseconds heartbeat_timeout,
                  Deadline now);

  /// A request of this rank to the store goes out, and is answered.
  void on_request(Deadline now);
  void on_reply() { awaits_reply_ = false; }
  /// What the store has said at `when` to this rank or to another one of its crew: the numbers of the ranks, in the
  /// order in which they were given.
  void on_heartbeats(const std::vector<std::int64_t>& heartbeats, Deadline when);

  /// The store has ended, without an answer. Returns whether its holder had said good-bye, so that nobody minds.
  bool on_store_lost();
  void on_owner_exit() { owner_exited_ = true; }

  struct Suspects {
    std::vector<int> ranks;  ///< silent for too long, ascending
    bool store = false;      ///< has not answered for too long: nothing is known of the ranks then
  };
  Suspects check(Deadline now);
  /// When the next look is meant to be. A process that comes to it much later was stopped itself: what passed meanwhile
  /// does not count.
  void set_next_check(Deadline next_check) { next_check_ = next_check; }
  /// Whether half the patience with someone is over, and not all of it. It is worth looking closely then.
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
  /// apart once it is stopped do not count in full, since whoever looks may have been stopped with it.
  Clock::duration check(Deadline now, bool stopped);
  bool is_stopped() const { return stopped_ > Clock::duration::zero(); }
  /// Whether `heartbeat_timeout` with it is over. In a hurry it may be, and that is enough: whoever waits for the
  /// process has seen it, and may leave.
  bool is_expired(Clock::duration heartbeat_timeout, bool poll_fast) const {
    const auto at_least = std::max<Clock::duration>(heartbeat_timeout - poll_interval / 2, heartbeat_timeout / 2);
    return stopped_ >= (poll_fast ? at_least : heartbeat_timeout);
  }

 private:
  Deadline last_;
  Clock::duration stopped_ = Clock::duration::zero();
};

/// How much time passes between two signs of life of one of so many crews: 250 ms up to 64 of them, then in proportion
/// to their number, so that whoever serves the store has no more than some 500 a second to answer, two of each.
std::chrono::milliseconds heartbeat_interval(int groups);

}  // namespace tutti::comm
