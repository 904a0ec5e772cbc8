#include "launch/signal_events.h"

#include <poll.h>
#include <sys/signalfd.h>

#include <cerrno>
#include <system_error>

namespace tutti {
namespace {

bool is_ignored(int signal) {
  struct sigaction action {};
  return ::sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

}  // namespace

SignalEvents::SignalEvents() {
  sigset_t taken;
  sigemptyset(&taken);
  sigaddset(&taken, SIGINT);
  sigaddset(&taken, SIGTERM);
  for (const int signal : {SIGHUP, SIGQUIT}) {
    if (!is_ignored(signal)) sigaddset(&taken, signal);  // nohup ignores SIGHUP
  }
  fd_ = FileDescriptor(::signalfd(-1, &taken, SFD_NONBLOCK | SFD_CLOEXEC));
  if (!fd_.is_open()) throw std::system_error(errno, std::generic_category(), "signalfd");
  sigaddset(&taken, SIGPIPE);  // a reader of the output that exits must not end the job
  ::pthread_sigmask(SIG_BLOCK, &taken, &mask_before_);
  // Some parents leave SIGCHLD ignored, which would discard the ranks' exit codes.
  struct sigaction by_default {};
  by_default.sa_handler = SIG_DFL;
  ::sigaction(SIGCHLD, &by_default, &child_before_);
}

SignalEvents::~SignalEvents() {
  // Discards a pending SIGPIPE: the write that caused it has already failed.
  sigset_t pipe;
  sigemptyset(&pipe);
  sigaddset(&pipe, SIGPIPE);
  const timespec at_once{};
  while (sigismember(&mask_before_, SIGPIPE) == 0 && ::sigtimedwait(&pipe, nullptr, &at_once) == SIGPIPE) {
  }
  ::sigaction(SIGCHLD, &child_before_, nullptr);
  ::pthread_sigmask(SIG_SETMASK, &mask_before_, nullptr);
}

bool SignalEvents::has_pending() const {
  pollfd readable{fd_.get(), POLLIN, 0};
  return ::poll(&readable, 1, 0) == 1;
}

std::vector<int> SignalEvents::take() {
  std::vector<int> signals;
  signalfd_siginfo info{};
  while (::read(fd_.get(), &info, sizeof(info)) == static_cast<ssize_t>(sizeof(info))) {
    signals.push_back(static_cast<int>(info.ssi_signo));
  }
  return signals;
}

}  // namespace tutti
