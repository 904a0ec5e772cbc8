#pragma once
// Finds the root cause of a failure. A rank whose operation fails knows only the ranks that it waited for, and these
// may have left because of another rank. So each failing rank publishes a failure report. It then follows the reports
// to a rank without one, which has exited or is elsewhere in its program.
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "comm/backend/transfer_error.h"

namespace tutti::comm {

/// The state of a rank when its operation failed.
struct FailureReport {
  enum class Reason {
    timeout,
    connection_closed,
    aborted,
    process_stopped,
    heartbeat_lost,
    peer_closed,
    process_exited,
  };
  Reason reason = Reason::timeout;
  std::uint64_t operation = 0;
  std::chrono::milliseconds timeout{0};  ///< how long the rank waited
  std::vector<int> waiting_for;
  std::string description;  ///< "all_reduce 'loss' (operation 17)"

  /// Whether the rank stopped waiting for ranks that may still enter the call.
  bool timed_out() const {
    return reason == Reason::timeout || reason == Reason::process_stopped || reason == Reason::heartbeat_lost;
  }
  /// Whether the ranks that it waited for had disconnected or exited.
  bool peer_left() const {
    return reason == Reason::connection_closed || reason == Reason::peer_closed || reason == Reason::process_exited;
  }
  /// Whether the ranks that it waited for can publish no report any more.
  bool is_definitive() const {
    return reason != Reason::timeout && reason != Reason::connection_closed && reason != Reason::aborted;
  }

  std::string to_text() const;
  static FailureReport from_text(const std::string& text);
};
using FailureReports = std::vector<std::optional<FailureReport>>;  // by rank

struct RootCause {
  std::vector<int> failed_ranks;  ///< ascending
  bool timed_out = false;         ///< they did not enter the call or are stopped; false if their connection was closed
  std::string message;
};

/// The root cause as `rank` finds it in the reports of all ranks. Its own report must be there. No I/O.
RootCause find_root_cause(const FailureReports& reports, int rank);

/// Whether `reports` has a report of every rank that another rank (starting from `rank`) waits for, and that can still
/// publish one. Ranks in `exited` cannot, nor can ranks whose processes have exited according to a report.
bool is_complete(const FailureReports& reports, int rank, const std::vector<int>& exited = {});

/// Publishes this rank's report at once, then reads those of the other ranks for at most 0.7 s. After lost heartbeats
/// for at most 0.1 s, because the store may be on the failed machine.
class RootCauseQuery {
 public:
  RootCauseQuery(std::shared_ptr<FailureBoard> failure_board, int rank, int size, FailureReport own_report);
  ~RootCauseQuery();
  RootCauseQuery(const RootCauseQuery&) = delete;
  RootCauseQuery& operator=(const RootCauseQuery&) = delete;

  /// Returns when this rank's report is published, or at the timeout.
  void wait_until_published();
  RootCause root_cause();

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;
  /// Waits for `done`; returns false at the timeout, which is shorter if the failure board is known to be unreachable.
  template <typename Done>
  bool wait(const Done& done);

  std::shared_ptr<FailureBoard> failure_board_;
  std::thread thread_;
  int rank_;
  int size_;
  int owner_;
  Deadline start_ = Clock::now();
  FailureReport own_report_;
};

}  // namespace tutti::comm
