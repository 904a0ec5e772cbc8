#include "launch/tutti_process.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <sstream>
#include <stdexcept>
#include <thread>

namespace tutti::test {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::seconds process_timeout{100};  // CTest's own deadlines are 120 s and more

bool is_zombie(pid_t pid) {
  return contains(content_of("/proc/" + std::to_string(pid) + "/status"), "State:\tZ");
}

std::uint16_t port_that_is_free() {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  auto* const where = reinterpret_cast<sockaddr*>(&address);
  if (::bind(fd, where, length) != 0 || ::getsockname(fd, where, &length) != 0) throw std::runtime_error("bind");
  ::close(fd);
  return ntohs(address.sin_port);
}

/// Returns false at the end of the stream.
bool append_available(int fd, std::string& text) {
  std::array<char, 4096> buffer;
  const ssize_t count = ::read(fd, buffer.data(), buffer.size());
  if (count > 0) text.append(buffer.data(), static_cast<std::size_t>(count));
  return count > 0;
}

}  // namespace

TuttiProcess::TuttiProcess(const std::vector<std::string>& arguments, const Options& options) {
  std::vector<std::string> words{TUTTI_COMMAND};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> pointers;
  pointers.reserve(words.size() + 1);
  for (auto& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  std::vector<std::string> variables = options.variables;

  int out[2];
  int err[2];
  if (::pipe2(out, O_CLOEXEC) != 0 || ::pipe2(err, O_CLOEXEC) != 0) throw std::runtime_error("pipe2");
  pid_ = ::fork();
  if (pid_ == 0) {
    ::dup2(out[1], STDOUT_FILENO);
    ::dup2(err[1], STDERR_FILENO);
    for (auto& variable : variables) ::putenv(variable.data());  // NOLINT(concurrency-mt-unsafe)
    if (::chdir(options.working_directory.c_str()) == 0) ::execv(TUTTI_COMMAND, pointers.data());
    ::_exit(127);
  }
  ::close(out[1]);
  ::close(err[1]);
  out_fd_ = out[0];
  err_fd_ = err[0];
}

TuttiProcess::~TuttiProcess() {
  if (pid_ > 0) {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  if (out_fd_ >= 0) ::close(out_fd_);
  if (err_fd_ >= 0) ::close(err_fd_);
}

void TuttiProcess::read_some() {
  std::array<pollfd, 2> fds{{{out_fd_, POLLIN, 0}, {err_fd_, POLLIN, 0}}};
  const int ready = ::poll(fds.data(), fds.size(), std::chrono::milliseconds(process_timeout).count());
  if (ready <= 0) throw std::runtime_error("tutti was silent too long; so far: " + finished_.out + finished_.err);
  if (fds[0].revents != 0 && !append_available(out_fd_, finished_.out)) {
    ::close(out_fd_);
    out_fd_ = -1;
  }
  if (fds[1].revents != 0 && !append_available(err_fd_, finished_.err)) {
    ::close(err_fd_);
    err_fd_ = -1;
  }
}

std::string TuttiProcess::wait_for_line(const std::string& text) {
  while (true) {
    for (const std::string* output : {&finished_.out, &finished_.err}) {
      const auto found = output->find(text);
      const auto end = found == std::string::npos ? found : output->find('\n', found);
      if (end != std::string::npos) return output->substr(found + text.size(), end - found - text.size());
    }
    if (out_fd_ < 0) throw std::runtime_error("tutti ended without printing " + text + ": " + finished_.err);
    read_some();
  }
}

void TuttiProcess::send(int signal) const {
  ::kill(pid_, signal);
}

bool TuttiProcess::ends_within(std::chrono::milliseconds time) {
  const auto deadline = Clock::now() + time;
  while (out_fd_ >= 0) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
    pollfd ready{out_fd_, POLLIN, 0};
    if (left.count() <= 0 || ::poll(&ready, 1, static_cast<int>(left.count())) <= 0) return false;
    read_some();
  }
  return true;
}

Finished TuttiProcess::wait() {
  while (out_fd_ >= 0 || err_fd_ >= 0) read_some();
  int status = 0;
  ::waitpid(pid_, &status, 0);
  pid_ = -1;
  finished_.exit_code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  return finished_;
}

Finished run_tutti(const std::vector<std::string>& arguments) {
  return TuttiProcess(arguments).wait();
}

std::pair<std::string, Finished> run_with_a_free_port(
    const std::function<std::vector<std::string>(const std::string& port)>& words) {
  for (;;) {
    const std::string port = std::to_string(port_that_is_free());
    Finished finished = run_tutti(words(port));
    if (!contains(finished.err, "port " + port + " is in use")) return {port, std::move(finished)};
  }
}

// NOLINTBEGIN(concurrency-mt-unsafe): these tests have one thread
CommandsInPath::CommandsInPath() : before_(::getenv("PATH")) {
  const auto folder = std::filesystem::path(TUTTI_COMMAND).parent_path().string();
  ::setenv("PATH", (before_ + ":" + folder).c_str(), 1);
}
CommandsInPath::~CommandsInPath() {
  ::setenv("PATH", before_.c_str(), 1);
}
// NOLINTEND(concurrency-mt-unsafe)

std::vector<std::string> launch_script(int ranks, const std::string& script, std::vector<std::string> options) {
  std::vector<std::string> arguments{"launch", "-n", std::to_string(ranks)};
  arguments.insert(arguments.end(), options.begin(), options.end());
  for (const auto* word : {"--", "/bin/sh", "-c"}) arguments.emplace_back(word);
  arguments.push_back(script);
  return arguments;
}

std::vector<pid_t> children_of(pid_t pid) {
  const std::string number = std::to_string(pid);
  std::string path = "/proc/";
  path += number;
  path += "/task/";
  path += number;
  path += "/children";
  std::istringstream words(content_of(path));
  return {std::istream_iterator<pid_t>(words), {}};
}

bool exits_soon(pid_t pid) {
  for (const auto deadline = Clock::now() + process_timeout; Clock::now() < deadline;) {
    if (::kill(pid, 0) != 0 || is_zombie(pid)) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return false;
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

int lines_with(const std::string& text, const std::string& part) {
  std::istringstream lines(text);
  int count = 0;
  for (std::string line; std::getline(lines, line);) count += contains(line, part) ? 1 : 0;
  return count;
}

}  // namespace tutti::test
