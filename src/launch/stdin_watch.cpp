#include "launch/stdin_watch.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <system_error>

namespace tutti {
namespace {

/// Returns true at the end of standard input, and false when `stop` becomes readable.
bool wait_for_end(int stop) {
  std::array<char, 4096> ignored;
  std::array<pollfd, 2> fds{{{stop, POLLIN, 0}, {STDIN_FILENO, POLLIN, 0}}};
  while (true) {
    if (::poll(fds.data(), fds.size(), -1) < 0 && errno != EINTR) return false;
    if (fds[0].revents != 0) return false;
    if (fds[1].revents == 0) continue;
    const ssize_t count = ::read(STDIN_FILENO, ignored.data(), ignored.size());
    if (count == 0 || (count < 0 && errno != EINTR && errno != EAGAIN)) return true;
  }
}

}  // namespace

StdinWatch::StdinWatch() : stop_(::eventfd(0, EFD_CLOEXEC)) {
  if (!stop_.is_open()) throw std::system_error(errno, std::generic_category(), "eventfd");
  thread_ = std::thread([stop = stop_.get()] {
    if (wait_for_end(stop)) ::kill(::getpid(), SIGTERM);
  });
}

StdinWatch::~StdinWatch() {
  const std::uint64_t one = 1;
  while (::write(stop_.get(), &one, sizeof(one)) < 0 && errno == EINTR) {
  }
  thread_.join();
}

}  // namespace tutti
