#pragma once
// The timeouts that a variable can set.
#include <chrono>

#include "tutti/comm/communicator_options.h"

namespace tutti::comm {

/// A failure that may end by itself (a stopped process, missed heartbeats, a possible deadlock) is logged after this
/// time, and ends the job after its timeout.
inline constexpr std::chrono::milliseconds report_delay = std::chrono::seconds(2);

/// `options.heartbeat_timeout`, or the value of TUTTI_HEARTBEAT_TIMEOUT in seconds if the option has its default.
/// Throws UsageError unless the value is positive.
std::chrono::milliseconds heartbeat_timeout(const CommunicatorOptions& options = {});
/// The same for `options.deadlock_timeout` and TUTTI_DEADLOCK_TIMEOUT, which may be zero.
std::chrono::milliseconds deadlock_timeout(const CommunicatorOptions& options = {});

}  // namespace tutti::comm
