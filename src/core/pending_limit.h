#pragma once
// Limits the number of unauthenticated connections and their time. No I/O.
//
// A rank of the job proves the secret within milliseconds, so the listener closes the connections that have waited
// longest, under load after pending_timeout_under_load: many unauthenticated clients delay the job, but they do not use
// up its descriptors.
#include <chrono>
#include <cstddef>
#include <vector>

namespace tutti {

class PendingLimit {
 public:
  using Time = std::chrono::steady_clock::time_point;

  static constexpr std::size_t max_pending = 256;
  static constexpr auto pending_timeout = std::chrono::seconds(10);
  static constexpr auto pending_timeout_under_load = std::chrono::milliseconds(250);

  /// How long one of `waiting` may stay.
  static Time::duration timeout_for(std::size_t waiting);
  /// How many of the connections accepted at `since`, the earliest first, to close now.
  static std::size_t to_evict(const std::vector<Time>& since, Time now);
  /// Whether one more may come in beside `waiting` others. Otherwise they stay outside, where the system keeps them.
  static bool has_capacity(std::size_t waiting) { return waiting < max_pending; }
};

}  // namespace tutti
