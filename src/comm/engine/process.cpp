#include "comm/engine/process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

#include "core/file_descriptor.h"

namespace tutti::comm {
namespace {

struct ProcessLook {
  char letter = '?';          // of its state
  std::uint64_t started = 0;  // in ticks since the machine started
};

// Nothing where there is no such process, or where it cannot be looked at. A rank does this several times a second.
std::optional<ProcessLook> look_at(pid_t process) {
  const FileDescriptor file(::open(("/proc/" + std::to_string(process) + "/stat").c_str(), O_RDONLY | O_CLOEXEC));
  std::array<char, 1024> text{};
  const auto length = file.is_open() ? ::read(file.get(), text.data(), text.size() - 1) : -1;
  if (length <= 0) return std::nullopt;
  // "PID (NAME) STATE ...": a name may hold anything. The start is the 20th word from the state on.
  const std::string_view all(text.data(), static_cast<std::size_t>(length));
  auto place = all.rfind(") ");
  if (place == std::string_view::npos || (place += 2) >= all.size()) return std::nullopt;
  ProcessLook look;
  look.letter = all[place];
  constexpr int words_before = 19;
  for (int word = 0; word < words_before; ++word) {
    place = all.find(' ', place);
    if (place++ == std::string_view::npos) return std::nullopt;
  }
  const auto [end, error] = std::from_chars(all.data() + place, all.data() + all.size(), look.started);
  return error == std::errc() ? std::optional(look) : std::nullopt;
}

ProcessIdentity identify() {
  ProcessIdentity identity;
  identity.number = ::getpid();
  struct stat file {};
  if (::stat("/proc/self/ns/pid", &file) == 0) {
    identity.namespace_device = file.st_dev;
    identity.namespace_inode = file.st_ino;
  }
  if (::stat("/proc/self/ns/time", &file) == 0) identity.clock_inode = file.st_ino;
  if (const auto look = look_at(identity.number)) identity.started = look->started;
  identity.nonce = random_nonce();
  return identity;
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

ProcessWatch::ProcessWatch(const ProcessIdentity& process) : process_(process.number) {
  if (process.clock_inode == this_process().clock_inode) started_ = process.started;
}

ProcessState ProcessWatch::state() const {
  const auto look = look_at(process_);
  if (!look) return is_gone(process_) ? ProcessState::ended : ProcessState::running;
  const bool another = started_ != 0 && look->started != started_;
  if (another || look->letter == 'Z' || look->letter == 'X') return ProcessState::ended;
  return look->letter == 'T' ? ProcessState::stopped : ProcessState::running;
}

}  // namespace tutti::comm
