#pragma once
// SIGINT and SIGTERM, and SIGHUP and SIGQUIT unless they are ignored, as readable events during a launch. The
// destructor restores the earlier handlers and mask.
#include <signal.h>

#include <vector>

#include "core/file_descriptor.h"

namespace tutti {

class SignalEvents {
 public:
  SignalEvents();
  ~SignalEvents();
  SignalEvents(const SignalEvents&) = delete;
  SignalEvents& operator=(const SignalEvents&) = delete;

  /// Becomes readable when a signal has arrived.
  int fd() const { return fd_.get(); }
  /// True if a signal has arrived that take() has not returned.
  bool has_pending() const;
  /// The signals that have arrived since the last call.
  std::vector<int> take();
  /// The earlier signal mask of the thread, with which children start.
  const sigset_t& mask_before() const { return mask_before_; }

 private:
  sigset_t mask_before_{};
  struct sigaction child_before_ {};
  FileDescriptor fd_;
};

}  // namespace tutti
