#pragma once
// How many strangers may stand at a door, and for how long. Pure.
//
// Whoever belongs to the job proves it in milliseconds, so those who have waited long are the ones to lose. A crowd of
// them costs the job a moment, not its descriptors.
#include <chrono>
#include <cstddef>
#include <vector>

namespace tutti::comm {

class PendingLimit {
 public:
  using Time = std::chrono::steady_clock::time_point;

  static constexpr std::size_t max_pending = 256;
  static constexpr auto pending_timeout = std::chrono::seconds(10);
  static constexpr auto pending_timeout_under_load = std::chrono::milliseconds(250);

  /// How long one of `waiting` may stay.
  static Time::duration timeout_for(std::size_t waiting);
  /// How many of those that came at `since`, the earliest first, are turned away now.
  static std::size_t to_evict(const std::vector<Time>& since, Time now);
  /// Whether one more may come in beside `waiting` others. Otherwise they stay outside, where the system keeps them.
  static bool has_capacity(std::size_t waiting) { return waiting < max_pending; }
};

}  // namespace tutti::comm
