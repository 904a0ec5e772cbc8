#include "train/stop_signal.h"

#include <csignal>

#include <array>
#include <mutex>

namespace tutti {

namespace {

constexpr std::array signals{SIGINT, SIGTERM};  // SIGINT first: note() uses before[0]

// Global, because a signal handler can access globals only. All StopSignals share them.
volatile std::sig_atomic_t received_signal = 0;
std::array<struct sigaction, signals.size()> before;
std::mutex stop_signals_mutex;
int stop_signals = 0;  // that exist; guarded by stop_signals_mutex

void restore(bool ignores_sigterm) {
  for (std::size_t i = 0; i < signals.size(); ++i) {
    const bool ends_the_process = before[i].sa_handler == SIG_DFL;
    if (signals[i] == SIGTERM && ignores_sigterm && ends_the_process) continue;
    ::sigaction(signals[i], &before[i], nullptr);
  }
}

void note(int signal) {
  received_signal = signal;
  if (signal == SIGINT) ::sigaction(SIGINT, before.data(), nullptr);  // async-signal-safe
}

}  // namespace

StopSignal::StopSignal() {
  const std::lock_guard lock(stop_signals_mutex);
  if (stop_signals++ > 0) return;
  received_signal = 0;
  struct sigaction action {};
  action.sa_handler = note;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  for (std::size_t i = 0; i < signals.size(); ++i) {
    struct sigaction replaced {};
    ::sigaction(signals[i], &action, &replaced);
    if (replaced.sa_handler != note) before[i] = replaced;  // otherwise it is still there from the last run
  }
}

StopSignal::~StopSignal() {
  {
    const std::lock_guard lock(stop_signals_mutex);
    if (--stop_signals > 0) return;
    restore(has_stopped_);
  }
  if (raises_again_ && received()) ::raise(received_signal);
}

bool StopSignal::received() const {
  return received_signal != 0;
}

}  // namespace tutti
