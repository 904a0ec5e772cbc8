#pragma once
// SIGINT and SIGTERM as a request to stop.

namespace tutti {

/// Records SIGINT and SIGTERM. A second SIGINT goes to the handler that was installed before. Further SIGTERMs have no
/// effect, because schedulers repeat SIGTERM while a checkpoint is being saved. Only one may exist at a time, because
/// the operating system has one handler per signal.
class StopSignal {
 public:
  StopSignal();
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  bool received() const;
};

}  // namespace tutti
