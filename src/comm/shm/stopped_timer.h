#pragma once
// A rank whose process is stopped (SIGSTOP, Ctrl+Z) is given up long before an operation's deadline. Pure.
#include <chrono>

#include "comm/backend/transfer_error.h"

namespace tutti::comm {

/// For how long a process has been seen to be stopped. Looks that are far apart do not count in full: whoever looks may
/// have been stopped meanwhile itself, with all others.
class StoppedTimer {
 public:
  explicit StoppedTimer(Deadline now) : last_check_(now) {}

  /// Whether it is time to look again.
  bool due(Deadline now) const { return now - last_check_ >= poll_interval; }
  /// Returns for how long, up to this look.
  Clock::duration check(Deadline now, bool stopped);

 private:
  static constexpr auto poll_interval = std::chrono::milliseconds(50);
  Deadline last_check_;
  Clock::duration stopped_ = Clock::duration::zero();
};

}  // namespace tutti::comm
