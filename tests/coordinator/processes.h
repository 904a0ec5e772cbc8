#pragma once
// Ranks and coordinators as processes: forked before this process has threads, so that a test can kill or stop them.
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <functional>
#include <string>
#include <system_error>

#include "core/file_descriptor.h"

namespace tutti::coordinator::test {

/// A forked process that runs `body` and then exits with 0, or with 1 after an exception. Killed by the destructor.
class Process {
 public:
  explicit Process(const std::function<void(Process&)>& body) {
    std::array<int, 2> down{};
    std::array<int, 2> up{};
    if (::pipe2(down.data(), O_CLOEXEC) != 0 || ::pipe2(up.data(), O_CLOEXEC) != 0) {
      throw std::system_error(errno, std::generic_category(), "pipe2");
    }
    pid_ = ::fork();
    const bool is_child = pid_ == 0;
    in_ = FileDescriptor(is_child ? down[0] : up[0]);
    out_ = FileDescriptor(is_child ? up[1] : down[1]);
    ::close(is_child ? down[1] : down[0]);
    ::close(is_child ? up[0] : up[1]);
    if (!is_child) return;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::alarm(60);  // the deadline of a test that hangs
    try {
      body(*this);
    } catch (const std::exception& error) {
      write_line(std::string("exception: ") + error.what());
      ::_exit(1);
    }
    ::_exit(0);
  }
  ~Process() {
    if (pid_ <= 0 || has_been_reaped_) return;
    ::kill(pid_, SIGKILL);
    wait();
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  void signal(int number) const { ::kill(pid_, number); }
  /// Returns when all of its threads are stopped.
  void stop() const {
    signal(SIGSTOP);
    siginfo_t info{};
    ::waitid(P_PID, static_cast<id_t>(pid_), &info, WSTOPPED);
  }
  int wait() {
    int status = 0;
    ::waitpid(pid_, &status, 0);
    has_been_reaped_ = true;
    return status;
  }
  /// To the other side.
  void write_line(const std::string& line) const {
    const std::string text = line + "\n";
    [[maybe_unused]] const auto written = ::write(out_.get(), text.data(), text.size());
  }
  /// From the other side; empty at its end.
  std::string read_line() {
    std::string line;
    char byte = 0;
    while (::read(in_.get(), &byte, 1) == 1 && byte != '\n') line += byte;
    return line;
  }

 private:
  pid_t pid_ = -1;
  FileDescriptor in_;
  FileDescriptor out_;
  bool has_been_reaped_ = false;
};

}  // namespace tutti::coordinator::test
