#include "comm/os/sigpipe_guard.h"

#include <ctime>

namespace tutti::comm {
namespace {

sigset_t sigpipe_set() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGPIPE);
  return signals;
}

bool is_pending() {
  sigset_t pending;
  sigpending(&pending);
  return sigismember(&pending, SIGPIPE) == 1;
}

}  // namespace

SigpipeGuard::SigpipeGuard() : was_pending_(is_pending()) {
  const auto signals = sigpipe_set();
  pthread_sigmask(SIG_BLOCK, &signals, &previous_mask_);
}

SigpipeGuard::~SigpipeGuard() {
  const auto signals = sigpipe_set();
  const timespec no_wait{};
  if (!was_pending_ && is_pending()) sigtimedwait(&signals, nullptr, &no_wait);
  pthread_sigmask(SIG_SETMASK, &previous_mask_, nullptr);
}

}  // namespace tutti::comm
