#pragma once
// SIGINT and SIGTERM as a wish to stop.

namespace tutti {

/// While one lives, the first SIGINT or SIGTERM is noted, and a second one has the effect that it had before. One at a
/// time: the operating system has one handler for each signal.
class StopSignal {
 public:
  StopSignal();
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  bool received() const;
};

}  // namespace tutti
