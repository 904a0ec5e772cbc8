#pragma once
// Which ranks wait for which, and what follows from that: the root cause of a failure, and a deadlock. No I/O.
//
// A rank whose operation fails knows only the ranks that it waited for, and these may have left because of another
// rank. find_root_cause() follows the failure reports of the ranks to a rank without one, which has exited or is
// elsewhere in its program.
//
// Calls on a communicator are matched by their operation numbers. There is a deadlock if every calling thread of every
// rank waits in a call that some member of its communicator has not made. That member is blocked in another call, so no
// call can complete: one was made on some ranks only.
#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/job_ranks.h"

namespace tutti::flight {

/// The state of a rank when its operation failed.
struct FailureReport {
  enum class Reason {
    timeout,
    connection_closed,
    aborted,          ///< the rank itself has ended the call
    process_stopped,  ///< the peer's process has been stopped for the heartbeat timeout
    heartbeat_lost,   ///< the peer's process has missed heartbeats for the heartbeat timeout
    process_exited,   ///< the peer's process has exited
    device_timeout,   ///< a collective on the peer's device has not ended; this rank itself if its own device is late
    network_lost,     ///< the peer's machine acknowledges nothing on the connection between the two
  };
  Reason reason = Reason::timeout;
  std::uint64_t operation = 0;
  std::chrono::milliseconds timeout{0};  ///< how long the rank waited
  std::vector<int> waiting_for;          ///< the rank itself if its own device was late
  std::string description;               ///< "all_reduce 'loss' (operation 17)"

  /// Whether the rank stopped waiting for ranks that may still enter the call.
  bool timed_out() const {
    return reason == Reason::timeout || reason == Reason::process_stopped || reason == Reason::heartbeat_lost ||
           reason == Reason::device_timeout;
  }
  /// Whether the ranks that it waited for had disconnected or exited.
  bool peer_left() const {
    return reason == Reason::connection_closed || reason == Reason::process_exited || reason == Reason::network_lost;
  }
  /// Whether the ranks that it waited for can publish no report any more.
  bool is_definitive() const {
    return reason != Reason::timeout && reason != Reason::connection_closed && reason != Reason::aborted &&
           reason != Reason::device_timeout && reason != Reason::network_lost;
  }

  std::string to_text() const;
  static FailureReport from_text(const std::string& text);
};
using FailureReports = std::vector<std::optional<FailureReport>>;  // by rank

struct RootCause {
  std::vector<int> failed_ranks;  ///< ascending, numbered within the group
  bool timed_out = false;         ///< they did not enter the call or are stopped; false if their connection was closed
  std::string message;
};

/// The root cause as `rank` finds it in the reports of all ranks. Its own report must be there. The message names ranks
/// by `job_ranks`.
RootCause find_root_cause(const FailureReports& reports, int rank, const JobRanks& job_ranks = {});

/// Whether `reports` has a report of every rank that another rank (starting from `rank`) waits for, and that can still
/// publish one. Ranks in `exited` cannot, nor can ranks whose processes have exited according to a report.
bool is_complete(const FailureReports& reports, int rank, const std::vector<int>& exited = {});

/// The state of one rank whose calling threads are all blocked.
struct WaitState {
  struct CommunicatorCalls {
    std::uint64_t calls = 0;   ///< the number of calls that this rank has made
    std::vector<int> members;  ///< global ranks
  };
  struct PendingCall {
    std::string communicator;
    std::uint64_t number = 0;
    std::string text;  ///< "barrier 'epoch' (operation 16, train.cpp:42)"
    bool operator==(const PendingCall&) const = default;
  };
  std::vector<PendingCall> pending_calls;
  std::map<std::string, CommunicatorCalls> communicators;
  std::uint64_t changes = 0;  ///< differs if the rank has continued in between
};

/// Returns the error text if no rank can continue; nullopt if some rank may continue.
std::optional<std::string> find_deadlock(const std::vector<WaitState>& by_rank);

/// The ranks that have not made call `number` of a communicator, given the number of calls of each of its members.
std::vector<int> ranks_without_call(const std::map<int, std::uint64_t>& calls_by_rank, std::uint64_t number);

}  // namespace tutti::flight
