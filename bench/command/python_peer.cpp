#include "command/python_peer.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <filesystem>
#include <stdexcept>
#include <system_error>

#include "command/child_process.h"
#include "tutti/core/error.h"

namespace tutti::bench {
namespace {

std::array<int, 2> make_pipe() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) throw std::system_error(errno, std::generic_category(), "pipe() failed");
  return ends;
}

}  // namespace

void check_python(const std::string& python, const std::string& modules) {
  if (std::filesystem::is_directory(python) || ::access(python.c_str(), X_OK) != 0) {
    throw UsageError("--python " + python + " is not a program: give the path of a Python, with its folder");
  }
  const auto imports = "try:\n  import " + modules + "\nexcept ImportError as error:\n  raise SystemExit(str(error))";
  if (run_program({python, "-c", imports}) != 0) {
    throw UsageError("--python " + python + " cannot import " + modules +
                     ": ./dev peers and ./dev nlp use one that can");
  }
}

PythonPeer::PythonPeer(std::vector<std::string> command) {
  ::signal(SIGPIPE, SIG_IGN);  // a write to a Python process that exited returns an error instead
  const auto orders = make_pipe();
  const auto answers = make_pipe();
  std::vector<char*> arguments;
  for (std::string& word : command) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  const pid_t parent = ::getpid();
  child_ = ::fork();
  if (child_ < 0) throw std::system_error(errno, std::generic_category(), "cannot start " + command.front());
  if (child_ == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(1);
    ::dup2(orders[0], STDIN_FILENO);
    ::dup2(answers[1], STDOUT_FILENO);
    ::signal(SIGPIPE, SIG_DFL);
    ::execv(arguments[0], arguments.data());
    ::_exit(1);
  }
  ::close(orders[0]);
  ::close(answers[1]);
  requests_ = orders[1];
  answers_ = answers[0];
}

PythonPeer::~PythonPeer() {
  if (child_ > 0) {
    ::kill(child_, SIGKILL);
    ::waitpid(child_, nullptr, 0);
  }
  if (requests_ >= 0) ::close(requests_);
  ::close(answers_);
}

std::string PythonPeer::ask(const std::string& line) {
  const std::string whole = line + "\n";
  // A write of a short line to a pipe is atomic.
  bool alive = ::write(requests_, whole.data(), whole.size()) == static_cast<ssize_t>(whole.size());
  std::string answer;
  while (alive) {
    char next = 0;
    const auto got = ::read(answers_, &next, 1);
    if (got < 0 && errno == EINTR) continue;
    if (got == 1 && next == '\n') return answer;
    answer += next;
    alive = got == 1;
  }
  throw std::runtime_error("the Python process exited at '" + line + "'; see its output above");
}

void PythonPeer::finish() {
  ::close(requests_);
  requests_ = -1;
  int status = 0;
  while (::waitpid(child_, &status, 0) < 0 && errno == EINTR) {
  }
  child_ = -1;
  if (status != 0) throw std::runtime_error("the Python process ended with an error; see its output above");
}

}  // namespace tutti::bench
