#include "scale/forked_ranks.h"

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <iostream>
#include <iterator>
#include <stdexcept>
#include <system_error>
#include <vector>

namespace tutti::bench {
namespace {

constexpr int signal_exit_code = 128;

void check_that_no_thread_is_lost() {
  const std::filesystem::directory_iterator threads("/proc/self/task");
  if (std::distance(begin(threads), end(threads)) > 1) {
    throw std::runtime_error("cannot fork ranks: the process has several threads");
  }
}

[[noreturn]] void run_as_child(pid_t parent, int index, const std::function<int(int)>& work) {
  int code = 1;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() == parent) {  // the parent may have exited before prctl()
    try {
      code = work(index);
    } catch (const std::exception& error) {
      std::cerr << "rank " << index << " of this node: " << error.what() << '\n';
    }
  }
  std::cout.flush();
  // LibTorch's destructors would copy every page of memory that they free.
  std::_Exit(code);
}

void end_all(const std::vector<pid_t>& processes) {
  for (const pid_t process : processes) ::kill(process, SIGKILL);
  for (const pid_t process : processes) ::waitpid(process, nullptr, 0);
}

}  // namespace

int run_forked(int count, const std::function<int(int)>& work) {
  check_that_no_thread_is_lost();
  std::cout.flush();
  const pid_t parent = ::getpid();
  std::vector<pid_t> running;
  for (int index = 0; index < count; ++index) {
    const pid_t child = ::fork();
    if (child == 0) run_as_child(parent, index, work);
    if (child < 0) {
      const int reason = errno;
      end_all(running);
      throw std::system_error(reason, std::generic_category(), "fork");
    }
    running.push_back(child);
  }
  while (!running.empty()) {
    int status = 0;
    const pid_t ended = ::waitpid(-1, &status, 0);
    std::erase(running, ended);
    const int code = WIFSIGNALED(status) ? signal_exit_code + WTERMSIG(status) : WEXITSTATUS(status);
    if (code == 0) continue;
    end_all(running);
    return code;
  }
  return 0;
}

}  // namespace tutti::bench
