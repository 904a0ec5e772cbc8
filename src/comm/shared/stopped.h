#pragma once
// A rank whose process is stopped (SIGSTOP, Ctrl+Z) is given up long before an operation's deadline. Pure.
#include <chrono>

#include "comm/engine/transfer.h"

namespace tutti::comm {

/// For how long a process has been seen to be stopped. Looks that are far apart do not count in full: whoever looks may
/// have been stopped meanwhile itself, with all others.
class StoppedClock {
 public:
  explicit StoppedClock(Deadline now) : last_(now) {}

  /// Whether it is time to look again.
  bool due(Deadline now) const { return now - last_ >= between_looks; }
  /// Returns for how long, up to this look.
  Clock::duration look(Deadline now, bool stopped);

 private:
  static constexpr auto between_looks = std::chrono::milliseconds(50);
  Deadline last_;
  Clock::duration stopped_ = Clock::duration::zero();
};

}  // namespace tutti::comm
