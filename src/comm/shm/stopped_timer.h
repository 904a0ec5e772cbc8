#pragma once
// Measures how long a process has been stopped (SIGSTOP, Ctrl+Z). A rank that is stopped for the heartbeat timeout has
// failed, long before an operation's deadline. No I/O.
#include <chrono>
#include <optional>

#include "comm/backend/transfer_error.h"

namespace tutti::comm {

/// The time for which a process was observed to be stopped. The time between two checks counts at most as two poll
/// intervals: the checking process may have been stopped itself, together with all others.
class StoppedTimer {
 public:
  /// True before the first check, and if the poll interval has passed since the last one.
  bool due(Deadline now) const { return !last_check_ || now - *last_check_ >= poll_interval; }
  /// Records the state at `now`. Returns how long the process has been stopped.
  Clock::duration check(Deadline now, bool stopped);

 private:
  static constexpr auto poll_interval = std::chrono::milliseconds(50);
  std::optional<Deadline> last_check_;
  Clock::duration stopped_ = Clock::duration::zero();
};

}  // namespace tutti::comm
