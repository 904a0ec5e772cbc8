#include "launch/exit_event.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

namespace tutti {
namespace {

// Closes the write end when the child has exited: the read end is then readable.
void wait_for_exit(pid_t child, FileDescriptor write_end) {
  siginfo_t info{};
  while (::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT) != 0 && errno == EINTR) {
  }
  write_end.reset();
}

}  // namespace

ExitEvent::ExitEvent(pid_t child, Source source) {
  if (source == Source::automatic) fd_ = FileDescriptor(static_cast<int>(::syscall(SYS_pidfd_open, child, 0)));
  if (fd_.is_open()) return;
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw std::system_error(errno, std::generic_category(), "pipe2");
  fd_ = FileDescriptor(ends[0]);
  FileDescriptor write_end(ends[1]);
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);  // signals are for the thread that supervises
  waiter_ = std::thread(wait_for_exit, child, std::move(write_end));
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

ExitEvent::~ExitEvent() {
  if (waiter_.joinable()) waiter_.join();
}

}  // namespace tutti
