#pragma once
// Which ranks of the job are present, and how an absence is judged. No I/O: callers pass the time and what the kernel
// says.
//
//   absent --hello--> present --leave--> left
//                     present --FIN, or the process has ended--> failed (exited), at once
//                     present --RST--> disconnected --50 ms--> failed (exited), if another rank has joined
//                     present --network error--> disconnected --heartbeat_timeout--> failed (unreachable)
//                     disconnected --hello with the same key--> present
//                     present --no bytes for heartbeat_timeout--> failed (stopped or unreachable)
//   absent --hello of a later attempt--> failed (exited)
//
// `left` and `failed` are final.
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "coordinator/clock.h"
#include "coordinator/job.h"
#include "coordinator/messages.h"

namespace tutti::coordinator {

/// How a connection ended that no `leave` had ended.
enum class Disconnect : std::uint8_t {
  closed,         ///< the kernel of the peer closed it (FIN)
  reset,          ///< RST: a process that exited with unread bytes, or a router that has lost the connection
  network_error,  ///< timed out, or no route
};

class Membership {
 public:
  static constexpr Milliseconds warning_delay{2000};
  static constexpr Milliseconds reset_grace{50};

  Membership(int world_size, Milliseconds heartbeat_timeout);

  enum class Verdict {
    accepted,
    resumed,       ///< the same process as before
    refused,       ///< this connection only
    not_yet,       ///< this connection only: a new process may take the rank's place when no rank is present
    contradicted,  ///< the ranks of the job contradict each other: no rank can continue
  };
  struct HelloResult {
    Verdict verdict = Verdict::accepted;
    std::string why{};  ///< if not accepted
  };
  HelloResult hello(const Hello& hello, Time now);
  /// For a process of a job that has ended.
  static HelloResult failed_before(const Member& member);
  /// True for a process of a later attempt whose rank is absent: its process in this attempt ended before it joined.
  bool replaces_absent(const Member& member) const;
  void heard_from(int rank, Time now);
  /// Returns false if the rank has left or failed already.
  bool leave(int rank);
  /// Returns true if the rank has failed by this.
  bool disconnected(int rank, Disconnect how, Time now);
  /// The kernel says that the rank's process has ended. Returns true if the rank has failed by this.
  bool process_exited(int rank);

  /// All members count as heard from this much later, but not after `now`, because the coordinator itself did not run.
  void stalled(Time::duration duration, Time now);
  /// The failures and warnings by now. All that peers have sent must have been read before. `acknowledges` says whether
  /// the kernel of a rank's machine has acknowledged all bytes; it is asked only for ranks that miss heartbeats.
  std::vector<FailedRanks> judge(Time now, const std::function<bool(int rank)>& acknowledges);
  /// The present ranks that have missed so many heartbeats that the coordinator sends bytes to have them acknowledged.
  std::vector<int> to_probe(Time now) const;

  Milliseconds interval() const { return interval_; }  ///< between a rank's heartbeats
  bool is_active(int rank) const;                      ///< present or disconnected
  bool has_ended(int rank) const;                      ///< has left or failed
  bool has_begun() const { return first_.has_value(); }
  /// True if no rank is present or disconnected.
  bool has_finished() const;
  /// The keys of all ranks that have joined.
  std::set<Nonce> keys() const;

 private:
  enum class State : std::uint8_t { absent, present, disconnected, left, failed };
  struct Entry {
    State state = State::absent;
    Member member{};
    Nonce key{};
    Time last_heard{};
    Disconnect how{};        // if disconnected
    Time disconnected_at{};  // if disconnected
    bool is_warned = false;  // until the next heartbeat
  };
  Entry& entry(int rank) { return entries_.at(static_cast<std::size_t>(rank)); }
  const Entry& entry(int rank) const { return entries_.at(static_cast<std::size_t>(rank)); }
  std::string contradiction(const Member& member) const;
  bool is_later_attempt(const Member& member) const { return first_ && member.restart > first_->restart; }
  std::vector<int> overdue_with(int rank, Time now, Milliseconds limit) const;
  Milliseconds warning_limit() const { return warning_delay + slack_; }
  Milliseconds failure_limit() const { return heartbeat_timeout_ + slack_; }

  int world_size_;
  Milliseconds heartbeat_timeout_;
  Milliseconds interval_;
  Milliseconds slack_;  // by which the interval exceeds that of a small job
  int has_joined_ = 0;
  std::optional<Member> first_;
  std::vector<Entry> entries_;  // by rank
};

}  // namespace tutti::coordinator
