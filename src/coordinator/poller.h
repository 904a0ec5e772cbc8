#pragma once
// The descriptors that a thread waits for, and a way for other threads to end its wait.
#include <sys/epoll.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>

#include "coordinator/clock.h"
#include "core/file_descriptor.h"

namespace tutti::coordinator {

/// Of one thread; others may call wake().
class Poller {
 public:
  /// Throws std::system_error.
  Poller();

  /// `events`: EPOLLIN, EPOLLOUT. Replaces those of a descriptor that is watched. Throws std::system_error.
  void watch(const FileDescriptor& descriptor, std::uint32_t events);
  /// Before the descriptor is closed: a forked child may keep the file open, and its events would still be reported.
  void forget(const FileDescriptor& descriptor);
  /// Waits until descriptors are ready, or until wake(), for `timeout` at most. Calls on_ready(descriptor) for each.
  /// Returns false at the timeout.
  template <typename OnReady>
  bool wait(Milliseconds timeout, const OnReady& on_ready) {
    const int ready = wait_for_events(timeout);
    for (int index = 0; index < ready; ++index) {
      const int descriptor = events_.at(static_cast<std::size_t>(index)).data.fd;
      descriptor == wake_.get() ? clear_wake() : on_ready(descriptor);
    }
    return ready > 0;
  }
  void wake() const;

 private:
  static constexpr int max_events = 128;
  int wait_for_events(Milliseconds timeout);
  void clear_wake() const;

  FileDescriptor epoll_;
  FileDescriptor wake_;
  std::map<int, std::uint32_t> watched_;  // events by descriptor
  std::array<epoll_event, max_events> events_{};
};

}  // namespace tutti::coordinator
