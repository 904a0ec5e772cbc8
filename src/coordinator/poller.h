#pragma once
// The descriptors that a thread waits for, and a way for other threads to end its wait.
#include <sys/epoll.h>

#include <array>
#include <cstdint>
#include <map>
#include <span>

#include "coordinator/clock.h"
#include "core/file_descriptor.h"

namespace tutti::coordinator {

/// One thread at a time waits; others may call wake(). watch() and forget() exclude one another.
class Poller {
 public:
  /// Throws std::system_error.
  Poller();

  /// `events` as for epoll_ctl(). Replaces those of a descriptor that is watched. Throws std::system_error.
  void watch(int descriptor, std::uint32_t events);
  /// Before the descriptor is closed: a forked child may keep the file open, and its events would still be reported.
  void forget(int descriptor);
  /// Waits until descriptors are ready, or until wake(), for `timeout` at most. Returns the events of the descriptors,
  /// which are valid until the next call.
  std::span<const epoll_event> wait(Milliseconds timeout);
  void wake() const;
  /// Readable while wait() would return at once.
  int descriptor() const { return epoll_.get(); }

 private:
  static constexpr int max_events = 128;

  FileDescriptor epoll_;
  FileDescriptor wake_;
  std::map<int, std::uint32_t> watched_;  // events by descriptor
  std::array<epoll_event, max_events> events_{};
};

}  // namespace tutti::coordinator
