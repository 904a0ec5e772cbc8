#include "failures/heartbeat_cpu.h"

#include <algorithm>
#include <array>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

namespace tutti::bench {
namespace {

constexpr std::array<std::string_view, 4> heartbeat_threads{"tutti-coord", "tutti-server", "tutti-deadlock",
                                                            "tutti-tcp"};

template <typename Value>
Value read_first(const std::filesystem::path& file) {
  Value value{};
  std::ifstream(file) >> value;
  return value;
}

}  // namespace

CpuTime cpu_time() {
  constexpr double nanosecond = 1e-9;
  timespec all{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &all);
  CpuTime spent{.heartbeats = 0,
                .all = static_cast<double>(all.tv_sec) + nanosecond * static_cast<double>(all.tv_nsec)};
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task")) {
    const auto name = read_first<std::string>(thread.path() / "comm");
    if (std::ranges::find(heartbeat_threads, name) == heartbeat_threads.end()) continue;
    spent.heartbeats += nanosecond * read_first<double>(thread.path() / "schedstat");
  }
  return spent;
}

}  // namespace tutti::bench
