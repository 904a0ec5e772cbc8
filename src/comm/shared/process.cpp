#include "comm/shared/process.h"

#include <poll.h>
#include <signal.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <string>
#include <system_error>

namespace tutti::comm {
namespace {

ProcessIdentity identify() {
  ProcessIdentity identity;
  identity.number = ::getpid();
  struct stat file {};
  if (::stat("/proc/self/ns/pid", &file) == 0) {
    identity.namespace_device = file.st_dev;
    identity.namespace_inode = file.st_ino;
  }
  identity.nonce = random_nonce();
  return identity;
}

}  // namespace

Nonce random_nonce() {
  Nonce nonce{};
  if (::getrandom(nonce.data(), sizeof(nonce), 0) != sizeof(nonce)) {
    throw std::system_error(errno, std::generic_category(), "getrandom");
  }
  return nonce;
}

const ProcessIdentity& this_process() {
  static const ProcessIdentity identity = identify();
  return identity;
}

ProcessWatch::ProcessWatch(pid_t process)
    : process_(process), descriptor_(static_cast<int>(::syscall(SYS_pidfd_open, process, 0))) {
  ended_ = !descriptor_.is_open() && errno == ESRCH;
}

bool ProcessWatch::stopped() const {
  std::ifstream file("/proc/" + std::to_string(process_) + "/stat");
  std::string line;
  std::getline(file, line);
  // "PID (NAME) STATE ...", and a name may hold anything.
  const auto end_of_name = line.rfind(')');
  return end_of_name != std::string::npos && line.substr(end_of_name + 1, 3) == " T ";
}

bool ProcessWatch::running() const {
  if (ended_) return false;
  if (!descriptor_.is_open()) return ::kill(process_, 0) == 0 || errno != ESRCH;
  pollfd process{.fd = descriptor_.get(), .events = POLLIN, .revents = 0};
  return ::poll(&process, 1, 0) <= 0;
}

}  // namespace tutti::comm
