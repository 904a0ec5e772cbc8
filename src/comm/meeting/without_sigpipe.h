#pragma once
#include <csignal>

namespace tutti::comm {

/// While it lives, writing to a connection that the peer has closed is an error for this thread and for the threads it
/// starts, and not the end of the process: Gloo writes without MSG_NOSIGNAL.
class WithoutSigpipe {
 public:
  WithoutSigpipe();
  ~WithoutSigpipe();
  WithoutSigpipe(const WithoutSigpipe&) = delete;
  WithoutSigpipe& operator=(const WithoutSigpipe&) = delete;

 private:
  sigset_t before_{};
  bool was_pending_ = false;
};

}  // namespace tutti::comm
