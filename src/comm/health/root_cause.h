#pragma once
// Finding out who is at fault. A rank whose operation fails only knows whom it was waiting for, and that rank may have
// left because of a third one. So each failing rank posts where it stood, then follows the posts to a rank that has
// none (dead, or somewhere else in its program).
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "comm/backend/transfer_error.h"

namespace tutti::comm {

/// Where a rank stood when it left the group.
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
  std::chrono::milliseconds timeout{0};  ///< how long it has waited
  std::vector<int> waiting_for;
  std::string description;  ///< "all_reduce 'loss' (operation 17)"

  /// Whether it stopped waiting for ranks that may still come.
  bool timed_out() const {
    return reason == Reason::timeout || reason == Reason::process_stopped || reason == Reason::heartbeat_lost;
  }
  /// Whether it found those that it waited for to be away.
  bool peer_left() const {
    return reason == Reason::connection_closed || reason == Reason::peer_closed || reason == Reason::process_exited;
  }
  /// Whether those that it waited for can leave no word any more.
  bool is_definitive() const {
    return reason != Reason::timeout && reason != Reason::connection_closed && reason != Reason::aborted;
  }

  std::string to_text() const;
  static FailureReport from_text(const std::string& text);
};
using FailureReports = std::vector<std::optional<FailureReport>>;  // by rank

struct RootCause {
  std::vector<int> failed_ranks;  ///< ascending
  bool timed_out = false;         ///< they did not arrive or are stopped, as opposed to: their connection was closed
  std::string message;
};

/// Pure: what `rank` says given what all ranks posted. Its own standing must be there.
RootCause find_root_cause(const FailureReports& reports, int rank);

/// Whether `reports` has a post of every rank that someone (starting from `rank`) waits for, and that can still post.
/// Those in `exited` cannot, nor can those of whom a rank knows that their processes have ended.
bool is_complete(const FailureReports& reports, int rank, const std::vector<int>& exited = {});

/// Posts where this rank stands (at once), then lets look what the others posted (for at most about a second; hardly at
/// all where other machines are silent, for the store may be on one of them).
class RootCauseQuery {
 public:
  RootCauseQuery(std::shared_ptr<FailureBoard> failure_board, int rank, int size, FailureReport own_report);
  ~RootCauseQuery();
  RootCauseQuery(const RootCauseQuery&) = delete;
  RootCauseQuery& operator=(const RootCauseQuery&) = delete;

  /// Returns when this rank's post was handed over, or could not be in time.
  void wait_until_published();
  RootCause root_cause();

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;
  /// Whether `done` was seen in time. The shorter patience holds once the bulletin is known not to answer.
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
