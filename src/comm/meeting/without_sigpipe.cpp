#include "comm/meeting/without_sigpipe.h"

#include <ctime>

namespace tutti::comm {
namespace {

sigset_t only_sigpipe() {
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

WithoutSigpipe::WithoutSigpipe() : was_pending_(is_pending()) {
  const auto signals = only_sigpipe();
  pthread_sigmask(SIG_BLOCK, &signals, &before_);
}

WithoutSigpipe::~WithoutSigpipe() {
  const auto signals = only_sigpipe();
  const timespec at_once{};
  if (!was_pending_ && is_pending()) sigtimedwait(&signals, nullptr, &at_once);
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

}  // namespace tutti::comm
