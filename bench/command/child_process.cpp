#include "command/child_process.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "tutti/core/error.h"

namespace tutti::bench {
namespace {

constexpr int cannot_run = 126;

/// Blocks the signals that run_program handles, so that they stay pending until it reads them.
class PendingSignals {
 public:
  PendingSignals() {
    sigemptyset(&taken_);
    for (const int signal : {SIGCHLD, SIGINT, SIGTERM}) sigaddset(&taken_, signal);
    ::sigprocmask(SIG_BLOCK, &taken_, &mask_before_);
    // Some parents leave SIGCHLD ignored; the kernel would then discard the exit code.
    struct sigaction by_default {};
    by_default.sa_handler = SIG_DFL;
    ::sigaction(SIGCHLD, &by_default, &child_before_);
  }
  ~PendingSignals() {
    ::sigaction(SIGCHLD, &child_before_, nullptr);
    ::sigprocmask(SIG_SETMASK, &mask_before_, nullptr);
  }
  PendingSignals(const PendingSignals&) = delete;
  PendingSignals& operator=(const PendingSignals&) = delete;

  const sigset_t& mask_before() const { return mask_before_; }

  int wait() const {
    int signal = 0;
    ::sigwait(&taken_, &signal);
    return signal;
  }

 private:
  sigset_t taken_{};
  sigset_t mask_before_{};
  struct sigaction child_before_ {};
};

std::vector<char*> pointers(std::vector<std::string>& words) {
  std::vector<char*> result(words.size() + 1, nullptr);
  std::ranges::transform(words, result.begin(), [](std::string& word) { return word.data(); });
  return result;
}

std::vector<std::string> environment_with(const std::map<std::string, std::string>& extra) {
  std::vector<std::string> block;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    if (!extra.contains(text.substr(0, text.find('=')))) block.push_back(text);
  }
  for (const auto& [name, value] : extra) block.emplace_back(name).append("=").append(value);
  return block;
}

/// Uses fork, because posix_spawn cannot request a signal for the exit of the parent. Between fork and exec the child
/// makes system calls only, so threads of libraries are safe.
pid_t start(std::vector<std::string> words, std::vector<std::string> variables, const sigset_t& mask) {
  const auto arguments = pointers(words);
  const auto environment = pointers(variables);
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child < 0) throw std::system_error(errno, std::generic_category(), "cannot start " + words.front());
  if (child > 0) return child;
  ::setpgid(0, 0);  // Ctrl-C signals this process alone, which forwards it once
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (::getppid() != parent) ::_exit(cannot_run);
  for (const int signal : {SIGINT, SIGTERM}) ::signal(signal, SIG_DFL);  // a shell script cannot trap ignored ones
  ::sigprocmask(SIG_SETMASK, &mask, nullptr);
  ::execve(arguments[0], arguments.data(), environment.data());
  ::_exit(cannot_run);
}

}  // namespace

int run_program(const std::vector<std::string>& command, const std::map<std::string, std::string>& extra) {
  if (::access(command.front().c_str(), X_OK) != 0) {
    throw UsageError("cannot run " + command.front() + ": the file does not exist or is not executable");
  }
  const PendingSignals signals;
  const pid_t child = start(command, environment_with(extra), signals.mask_before());
  while (true) {
    const int signal = signals.wait();
    if (signal != SIGCHLD) {
      ::kill(child, signal);
      continue;
    }
    int status = 0;
    if (::waitpid(child, &status, WNOHANG) != child) continue;
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  }
}

}  // namespace tutti::bench
