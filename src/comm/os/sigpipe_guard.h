#pragma once
#include <csignal>

namespace tutti::comm {

/// Blocks SIGPIPE in the calling thread and in the threads that it starts, for the guard's lifetime. A write to a
/// connection that the peer has closed then returns an error instead of ending the process. Needed because Gloo writes
/// without MSG_NOSIGNAL.
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
