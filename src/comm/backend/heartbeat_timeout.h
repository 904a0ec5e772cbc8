#pragma once
#include <chrono>

namespace tutti::comm {

/// How long a process may be stopped, or another machine be silent, before those that wait for it give it up:
/// TUTTI_HEARTBEAT_TIMEOUT in seconds, or 1.5 s. Throws UsageError where the variable is no positive number.
std::chrono::milliseconds heartbeat_timeout();

}  // namespace tutti::comm
