#pragma once
#include <csignal>

namespace tutti::comm {

/// While it lives, writing to a connection that the peer has closed is an error for this thread and for the threads it
/// starts, and not the end of the process: Gloo writes without MSG_NOSIGNAL.
class SigpipeGuard {
 public:
  SigpipeGuard();
  ~SigpipeGuard();
  SigpipeGuard(const SigpipeGuard&) = delete;
  SigpipeGuard& operator=(const SigpipeGuard&) = delete;

 private:
  sigset_t previous_mask_{};
  bool was_pending_ = false;
};

}  // namespace tutti::comm
