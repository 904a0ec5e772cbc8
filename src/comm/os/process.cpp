#include "comm/os/process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <memory>
#include <span>
#include <utility>

#include "core/file_descriptor.h"

namespace tutti::comm {
namespace {

// The beginning of a file; empty if it cannot be read. A rank calls this several times a second, so the function uses
// plain system calls.
std::string_view read_file(const std::string& path, std::span<char> text) {
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  const auto length = file.is_open() ? ::read(file.get(), text.data(), text.size()) : 0;
  return {text.data(), static_cast<std::size_t>(std::max<ssize_t>(length, 0))};
}

std::string folder_of(pid_t process) {
  return "/proc/" + std::to_string(process);
}

// A process that writes a core file has failed, and writing may take minutes. Its state in /proc/PID/stat is that of a
// running process.
bool is_dumping_core(pid_t process) {
  std::array<char, 4096> text;
  return reports_core_dump(read_file(folder_of(process) + "/status", text));
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
  if (const auto proc_stat = read_proc_stat(folder_of(identity.pid))) identity.start_time = proc_stat->start_time;
  identity.nonce = random_nonce();
  return identity;
}

bool has_been_reaped(pid_t process) {
  return ::kill(process, 0) != 0 && errno == ESRCH;
}

}  // namespace

// "PID (NAME) STATE ...": the name may contain blanks and parentheses. The start time is 19 fields after the state.
std::optional<ProcStat> read_proc_stat(const std::string& folder) {
  std::array<char, 1024> text;
  const auto content = read_file(folder + "/stat", text);
  const auto name = content.find('(');
  const auto name_end = content.rfind(") ");
  auto position = name_end + 2;
  if (name == std::string_view::npos || name_end == std::string_view::npos || position >= content.size()) {
    return std::nullopt;
  }
  ProcStat proc_stat{.name = std::string(content.substr(name + 1, name_end - name - 1)), .state = content[position]};
  constexpr int fields_before = 19;
  for (int field = 0; field < fields_before; ++field) {
    position = content.find(' ', position);
    if (position++ == std::string_view::npos) return std::nullopt;
  }
  const auto [end, error] =
      std::from_chars(content.data() + position, content.data() + content.size(), proc_stat.start_time);
  return error == std::errc() ? std::optional(std::move(proc_stat)) : std::nullopt;
}

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

ProcessProbe::ProcessProbe(const ProcessIdentity& process) : pid_(process.pid) {
  if (process.time_namespace == this_process().time_namespace) start_time_ = process.start_time;
}

bool ProcessProbe::has_exited() const {
  const auto proc_stat = read_proc_stat(folder_of(pid_));
  if (!proc_stat) return has_been_reaped(pid_);
  const bool pid_reused = start_time_ != 0 && proc_stat->start_time != start_time_;
  if (pid_reused || proc_stat->state == 'Z' || proc_stat->state == 'X') return true;
  return proc_stat->state != 'T' && is_dumping_core(pid_);
}

}  // namespace tutti::comm
