#include "comm/engine/process.h"

#include <signal.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <optional>
#include <sstream>
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

struct ProcessLook {
  char letter = '?';          // of its state
  std::uint64_t started = 0;  // in ticks since the machine started
};

// Nothing where there is no such process, or where it cannot be looked at.
std::optional<ProcessLook> look_at(pid_t process) {
  std::ifstream file("/proc/" + std::to_string(process) + "/stat");
  std::string line;
  if (!std::getline(file, line)) return std::nullopt;
  // "PID (NAME) STATE ...": a name may hold anything. The start is the 20th word from the state on.
  const auto end_of_name = line.rfind(')');
  if (end_of_name == std::string::npos) return std::nullopt;
  std::istringstream words(line.substr(end_of_name + 1));
  ProcessLook look;
  words >> look.letter;
  constexpr int words_between = 18;
  std::string skipped;
  for (int word = 0; word < words_between; ++word) words >> skipped;
  if (!(words >> look.started)) return std::nullopt;
  return look;
}

bool is_gone(pid_t process) {
  return ::kill(process, 0) != 0 && errno == ESRCH;
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

ProcessWatch::ProcessWatch(pid_t process) : process_(process) {
  if (const auto look = look_at(process)) started_ = look->started;
}

ProcessState ProcessWatch::state() const {
  const auto look = look_at(process_);
  if (!look) return is_gone(process_) ? ProcessState::ended : ProcessState::running;
  const bool another = started_ != 0 && look->started != started_;
  if (another || look->letter == 'Z' || look->letter == 'X') return ProcessState::ended;
  return look->letter == 'T' ? ProcessState::stopped : ProcessState::running;
}

}  // namespace tutti::comm
