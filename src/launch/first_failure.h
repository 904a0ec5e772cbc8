#pragma once
// Which process of a job failed first. A rank that loses a peer often exits before that peer, whose destructors still
// run, so the order of exits does not tell. Ranks say more: a PeerError names the ranks that failed, and a flight
// record shows whose calls failed. No I/O.
#include <cstddef>
#include <string_view>
#include <vector>

namespace tutti {

/// The ranks that a line of a rank's output names as failed.
struct NamedFailure {
  std::vector<int> ranks;
  /// The ranks were late or stopped. They may fail after the rank that named them.
  bool timed_out = false;
};

/// Parses the errors of tutti: "barrier (operation 3): rank 2 exited; rank 0 was waiting" names rank 2. Other lines
/// name none.
NamedFailure named_failure_in(std::string_view line);

/// The end of one process: a rank, or the launcher on a host.
struct ProcessEnd {
  enum class State { completed, failed, ended_by_launcher };
  std::size_t process = 0;
  State state = State::completed;
  bool was_stopped = false;                    ///< by SIGSTOP, when the first process failed
  bool has_failed_call = false;                ///< in its flight record
  std::vector<std::size_t> failed_peers = {};  ///< the processes that its last lines name as failed
  bool peers_were_late = false;
};

struct FirstFailure {
  std::size_t process = 0;
  /// Processes that completed before it failed: an early exit makes other processes fail.
  std::vector<std::size_t> completed_before;
  /// Processes that its last lines name and that are not among those of this launcher.
  std::vector<std::size_t> named_elsewhere = {};
};

/// Follows the errors from the first process that failed to the processes that they name. `ends` is in the order of
/// exits, and one of them has failed.
FirstFailure find_first_failure(const std::vector<ProcessEnd>& ends);

}  // namespace tutti
