#include "train/stop_signal.h"

#include <csignal>

#include <array>

namespace tutti {

namespace {

constexpr std::array signals{SIGINT, SIGTERM};  // SIGINT first: note() uses before[0]

// Global, because a signal handler can access globals only. Owned by the only StopSignal.
volatile std::sig_atomic_t received_signal = 0;
std::array<struct sigaction, signals.size()> before;

void restore() {
  for (std::size_t i = 0; i < signals.size(); ++i) ::sigaction(signals[i], &before[i], nullptr);
}

void note(int signal) {
  received_signal = signal;
  if (signal == SIGINT) ::sigaction(SIGINT, before.data(), nullptr);  // async-signal-safe
}

}  // namespace

StopSignal::StopSignal() {
  received_signal = 0;
  struct sigaction action {};
  action.sa_handler = note;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  for (std::size_t i = 0; i < signals.size(); ++i) ::sigaction(signals[i], &action, &before[i]);
}

StopSignal::~StopSignal() {
  restore();
}

bool StopSignal::received() const {
  return received_signal != 0;
}

}  // namespace tutti
