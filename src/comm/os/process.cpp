#include "comm/os/process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <memory>
#include <optional>
#include <string>

#include "core/file_descriptor.h"

namespace tutti::comm {
namespace {

struct ProcStat {
  char state = '?';              // the state character of /proc/PID/stat
  std::uint64_t start_time = 0;  // in clock ticks since boot
};

// nullopt if the process does not exist or its file cannot be read. A rank calls this several times a second, so the
// function uses plain system calls.
std::optional<ProcStat> read_proc_stat(pid_t process) {
  const FileDescriptor file(::open(("/proc/" + std::to_string(process) + "/stat").c_str(), O_RDONLY | O_CLOEXEC));
  std::array<char, 1024> text{};
  const auto length = file.is_open() ? ::read(file.get(), text.data(), text.size() - 1) : -1;
  if (length <= 0) return std::nullopt;
  // "PID (NAME) STATE ...": the name may contain blanks and parentheses. The start time is 19 fields after the state.
  const std::string_view content(text.data(), static_cast<std::size_t>(length));
  auto position = content.rfind(") ");
  if (position == std::string_view::npos || (position += 2) >= content.size()) return std::nullopt;
  ProcStat proc_stat;
  proc_stat.state = content[position];
  constexpr int fields_before = 19;
  for (int field = 0; field < fields_before; ++field) {
    position = content.find(' ', position);
    if (position++ == std::string_view::npos) return std::nullopt;
  }
  const auto [end, error] =
      std::from_chars(content.data() + position, content.data() + content.size(), proc_stat.start_time);
  return error == std::errc() ? std::optional(proc_stat) : std::nullopt;
}

// A process that writes a core file has failed, and writing may take minutes. Its state in /proc/PID/stat is that of a
// running process.
bool is_dumping_core(pid_t process) {
  const FileDescriptor file(::open(("/proc/" + std::to_string(process) + "/status").c_str(), O_RDONLY | O_CLOEXEC));
  std::array<char, 4096> text{};
  const auto length = file.is_open() ? ::read(file.get(), text.data(), text.size()) : -1;
  return length > 0 && reports_core_dump({text.data(), static_cast<std::size_t>(length)});
}

ProcessIdentity identify() {
  ProcessIdentity identity;
  identity.pid = ::getpid();
  struct stat file {};
  if (::stat("/proc/self/ns/pid", &file) == 0) {
    identity.namespace_device = file.st_dev;
    identity.namespace_inode = file.st_ino;
  }
  if (::stat("/proc/self/ns/time", &file) == 0) identity.time_namespace = file.st_ino;
  if (const auto proc_stat = read_proc_stat(identity.pid)) identity.start_time = proc_stat->start_time;
  identity.nonce = random_nonce();
  return identity;
}

bool has_been_reaped(pid_t process) {
  return ::kill(process, 0) != 0 && errno == ESRCH;
}

}  // namespace

bool reports_core_dump(std::string_view status) {
  return status.find("\nCoreDumping:\t1\n") != std::string_view::npos;
}

// A forked child has the cache of its parent. Identities are never destroyed: callers hold references.
const ProcessIdentity& this_process() {
  static std::atomic<const ProcessIdentity*> cache = nullptr;
  const auto* known = cache.load();
  if (known != nullptr && known->pid == ::getpid()) return *known;
  auto identity = std::make_unique<const ProcessIdentity>(identify());
  if (cache.compare_exchange_strong(known, identity.get())) return *identity.release();
  return *known;  // that of another thread
}

ProcessProbe::ProcessProbe(pid_t process) : pid_(process) {
  if (const auto proc_stat = read_proc_stat(process)) start_time_ = proc_stat->start_time;
}

ProcessProbe::ProcessProbe(const ProcessIdentity& process) : pid_(process.pid) {
  if (process.time_namespace == this_process().time_namespace) start_time_ = process.start_time;
}

ProcessState ProcessProbe::state() const {
  const auto proc_stat = read_proc_stat(pid_);
  if (!proc_stat) return has_been_reaped(pid_) ? ProcessState::exited : ProcessState::running;
  const bool pid_reused = start_time_ != 0 && proc_stat->start_time != start_time_;
  if (pid_reused || proc_stat->state == 'Z' || proc_stat->state == 'X') return ProcessState::exited;
  if (proc_stat->state == 'T') return ProcessState::stopped;
  return is_dumping_core(pid_) ? ProcessState::exited : ProcessState::running;
}

}  // namespace tutti::comm
