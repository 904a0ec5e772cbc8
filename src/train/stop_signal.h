#pragma once
// SIGINT and SIGTERM as a request to stop.

namespace tutti {

/// Records SIGINT and SIGTERM. A second SIGINT goes to the handler that was installed before. Further SIGTERMs have no
/// effect, because schedulers repeat SIGTERM while a checkpoint is being saved. Several objects, of ranks that are
/// threads, record the same signals: the first one installs the handlers, the last one restores those from before.
class StopSignal {
 public:
  StopSignal();
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  bool received() const;
  /// A recorded signal does not stop the run: it is raised again when the handlers from before are restored.
  void leave_to_the_program() { raises_again_ = true; }

 private:
  bool raises_again_ = false;
};

}  // namespace tutti
