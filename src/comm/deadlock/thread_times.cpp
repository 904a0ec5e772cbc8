#include "comm/deadlock/thread_times.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <ctime>
#include <filesystem>
#include <string>
#include <system_error>

#include "comm/os/process.h"

namespace tutti::comm {
namespace {

// Queue threads ("tutti-worker") are not among them: they run tasks of the program. Some versions of Gloo name their
// thread.
constexpr std::array<std::string_view, 12> service_threads{
    "tutti-coord",   "tutti-server",    "tutti-device", "tutti-deadlock", "tutti-tcp",       "tutti-gloo-io",
    "gloo_tcp_loop", "pt_gloo_runloop", "pt_tcpstore",  "pt_tcpstore_uv", "pt_nccl_watchdg", "pt_nccl_heartbt"};

// The clock of a thread's CPU time, as the kernel numbers it. pthread_getcpuclockid() needs the thread's pthread_t.
clockid_t clock_of(pid_t thread) {
  constexpr unsigned cpu_time_of_thread = 6;
  return static_cast<clockid_t>((~static_cast<unsigned>(thread) << 3U) | cpu_time_of_thread);
}

}  // namespace

bool is_service_thread(std::string_view name) {
  return std::ranges::find(service_threads, name) != service_threads.end();
}

std::optional<ThreadTimes> idle_thread_times(const std::set<pid_t>& excluded) {
  std::error_code error;
  ThreadTimes times;
  for (auto entry = std::filesystem::directory_iterator("/proc/self/task", error);
       !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    const std::string number = entry->path().filename();
    pid_t thread = 0;
    std::from_chars(number.data(), number.data() + number.size(), thread);
    if (excluded.contains(thread)) continue;
    const auto state = read_proc_stat(entry->path());
    if (!state || is_service_thread(state->name)) continue;  // it may have exited
    if (state->state == 'R' || state->state == 'D') return std::nullopt;
    timespec used{};
    if (::clock_gettime(clock_of(thread), &used) != 0) continue;
    times[thread] = std::int64_t{used.tv_sec} * 1'000'000'000 + used.tv_nsec;
  }
  if (error) return std::nullopt;
  return times;
}

}  // namespace tutti::comm
