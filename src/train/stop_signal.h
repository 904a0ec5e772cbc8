#pragma once
// SIGINT and SIGTERM as a request to stop.

namespace tutti {

/// Records the first SIGINT or SIGTERM. A second signal goes to the handler that was installed before. Only one may
/// exist at a time, because the operating system has one handler per signal.
class StopSignal {
 public:
  StopSignal();
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  bool received() const;
};

}  // namespace tutti
