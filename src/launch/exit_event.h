#pragma once
// A file descriptor that becomes readable when a child process has exited.
#include <sys/types.h>

#include <thread>

#include "core/file_descriptor.h"

namespace tutti {

/// The event of one child. The child stays unreaped.
class ExitEvent {
 public:
  enum class Source {
    automatic,  ///< a pidfd; a thread where the system refuses it (before Linux 5.3, or a container's filter)
    thread,     ///< a thread that waits for the exit
  };
  explicit ExitEvent(pid_t child, Source source = Source::automatic);
  /// With a thread, blocks until the child has exited or has been reaped.
  ~ExitEvent();
  ExitEvent(const ExitEvent&) = delete;
  ExitEvent& operator=(const ExitEvent&) = delete;

  int fd() const { return fd_.get(); }

 private:
  FileDescriptor fd_;
  std::thread waiter_;
};

}  // namespace tutti
