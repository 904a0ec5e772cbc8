// tutti-rank LAUNCHER_PID PROGRAM ARGUMENTS...: runs one rank for `tutti launch`, which cannot do this itself when it
// is killed. It leads the rank's process group, waits for the program, ends as the program ended, and takes the whole
// group down when the launcher has exited. It uses plain system calls only: one such process stays beside every rank.
//
// A signal that ends the rank reaches the whole group. The shell of a script exits at once, while the program that the
// script runs saves a checkpoint. So the guard then waits for the rest of the group, which the launcher kills when the
// grace time ends.
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <optional>

namespace {

// The exit codes of shells for a program that cannot be run, and for one that does not exist.
constexpr int cannot_run = 126;
constexpr int not_found = 127;

/// Asks for `signal` when the parent exits, also if it has exited already.
void follow_parent(pid_t parent, int signal) {
  ::prctl(PR_SET_PDEATHSIG, signal);
  if (::getppid() != parent) ::kill(0, SIGKILL);
}

[[noreturn]] void become(char** command, const sigset_t& mask, pid_t guard) {
  follow_parent(guard, SIGKILL);
  ::pthread_sigmask(SIG_SETMASK, &mask, nullptr);
  ::execv(command[0], command);
  const int error = errno;
  ::dprintf(STDERR_FILENO, "tutti-rank: cannot run %s: %s\n", command[0], ::strerrordesc_np(error));
  ::_exit(error == ENOENT ? not_found : cannot_run);
}

/// The guard must hold none of the rank's pipes and sockets: their other ends wait for the last holder to close.
void close_descriptors() {
  const int null = ::open("/dev/null", O_RDWR);
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) ::dup2(null, fd);
  ::close_range(STDERR_FILENO + 1, ~0U, 0);
}

[[noreturn]] void end_like(int status) {
  if (WIFSIGNALED(status)) {
    const rlimit no_core{0, 0};  // the program has already written its core file, if any
    ::setrlimit(RLIMIT_CORE, &no_core);
    sigset_t only;  // other signals may be pending that were meant for the program
    sigemptyset(&only);
    sigaddset(&only, WTERMSIG(status));
    ::signal(WTERMSIG(status), SIG_DFL);
    ::raise(WTERMSIG(status));
    ::pthread_sigmask(SIG_UNBLOCK, &only, nullptr);
  }
  ::_exit(WIFEXITED(status) ? WEXITSTATUS(status) : cannot_run);
}

/// True if `status` is that of a process that a signal to the whole group ended, and other processes of the group
/// still run.
bool others_are_ending(int status) {
  sigset_t pending;  // the guard has blocked all signals
  if (!WIFSIGNALED(status) || ::sigpending(&pending) != 0 || ::sigismember(&pending, WTERMSIG(status)) != 1)
    return false;
  siginfo_t ignored{};
  return ::waitid(P_PGID, static_cast<id_t>(::getpgrp()), &ignored, WEXITED | WNOHANG | WNOWAIT) == 0;
}

/// Waits for the program; ends all processes if the launcher exits first.
int wait_for(pid_t program, int launcher_exited) {
  sigset_t awaited;
  sigemptyset(&awaited);
  sigaddset(&awaited, SIGCHLD);
  sigaddset(&awaited, launcher_exited);
  std::optional<int> ended;
  while (!ended || others_are_ending(*ended)) {
    if (::sigwaitinfo(&awaited, nullptr) == launcher_exited) {
      if (!ended && ::getpgid(program) == program) ::kill(-program, SIGKILL);  // a group of its own, as of `timeout`
      ::kill(0, SIGKILL);
    }
    int status = 0;
    for (pid_t child = 0; (child = ::waitpid(-1, &status, WNOHANG)) > 0;) {
      if (child == program) ended = status;
    }
  }
  return *ended;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    ::dprintf(STDERR_FILENO, "tutti-rank is started by 'tutti launch', not by hand\n");
    return 2;
  }
  // No other process sends this signal. All other signals go to the program alone.
  const int launcher_exited = SIGRTMAX;
  sigset_t all;
  sigset_t mask;
  sigfillset(&all);
  ::pthread_sigmask(SIG_BLOCK, &all, &mask);
  follow_parent(static_cast<pid_t>(::atol(argv[1])), launcher_exited);

  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  const pid_t guard = ::getpid();
  const pid_t program = ::fork();
  if (program < 0) {
    ::dprintf(STDERR_FILENO, "tutti-rank: cannot start %s: %s\n", argv[2], ::strerrordesc_np(errno));
    return cannot_run;
  }
  if (program == 0) become(argv + 2, mask, guard);
  close_descriptors();
  end_like(wait_for(program, launcher_exited));
}
