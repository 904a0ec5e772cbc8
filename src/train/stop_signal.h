#pragma once
// SIGINT and SIGTERM as a request to stop.

namespace tutti {

/// Records SIGINT and SIGTERM. A second SIGINT goes to the handler that was installed before. Further SIGTERMs have no
/// effect, because schedulers repeat SIGTERM while a checkpoint is being saved. Several objects, of ranks that are
/// threads, record the same signals: the first one installs the handlers, the last one restores those from before.
///
/// A scheduler sends SIGTERM to each rank, and the first one that comes stops the run on all of them. The signals of
/// the other ranks come later: after a run that a signal has stopped, a SIGTERM that would end the process has no
/// effect until the next run.
class StopSignal {
 public:
  StopSignal();
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  bool received() const;
  /// A recorded signal does not stop the run: it is raised again when the handlers from before are restored.
  void leave_to_the_program() { raises_again_ = true; }
  /// A signal, of this rank or of another one, has stopped the run.
  void has_stopped_the_run() { has_stopped_ = true; }

 private:
  bool raises_again_ = false;
  bool has_stopped_ = false;
};

}  // namespace tutti
