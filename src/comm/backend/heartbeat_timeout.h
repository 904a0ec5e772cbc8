#pragma once
#include <chrono>

namespace tutti::comm {

/// The time after which a process that is stopped, or a node that misses heartbeats, has failed: the value of
/// TUTTI_HEARTBEAT_TIMEOUT in seconds; 1.5 s by default. Throws UsageError if the value is not a positive number.
std::chrono::milliseconds heartbeat_timeout();

}  // namespace tutti::comm
