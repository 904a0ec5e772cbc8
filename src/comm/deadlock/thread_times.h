#pragma once
// Whether threads of the program run. A thread that has not made a call yet may make the call that other ranks wait
// for.
#include <sys/types.h>

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string_view>

namespace tutti::comm {

/// CPU time in nanoseconds, by thread.
using ThreadTimes = std::map<pid_t, std::int64_t>;

/// The CPU time of the threads of this process, except those in `excluded` and those that run no code of the program
/// (is_service_thread). Two equal results show that none of the others ran in between. nullopt if one of them is
/// running, ready to run, or waits for a disk; also if /proc cannot be read.
std::optional<ThreadTimes> idle_thread_times(const std::set<pid_t>& excluded);

/// True for the name of a thread with which tutti, Gloo, NCCL or c10d's store sends heartbeats, detects failures or
/// moves messages. No I/O.
bool is_service_thread(std::string_view name);

}  // namespace tutti::comm
