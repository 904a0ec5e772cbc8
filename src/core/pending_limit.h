#pragma once
// Limits the number of unauthenticated connections and their time, and the rate of accepts that fail. No I/O.
//
// A rank of the job proves the secret within milliseconds, so the listener closes the connections that have waited
// longest, under load after pending_timeout_under_load: many unauthenticated clients delay the job, but they do not use
// up its descriptors.
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <functional>
#include <vector>

namespace tutti {

class PendingLimit {
 public:
  using Time = std::chrono::steady_clock::time_point;

  static constexpr std::size_t max_pending = 256;
  static constexpr auto pending_timeout = std::chrono::seconds(10);
  static constexpr auto pending_timeout_under_load = std::chrono::milliseconds(250);

  /// How long one of `waiting` may stay.
  static Time::duration timeout_for(std::size_t waiting) {
    return has_capacity(waiting) ? Time::duration(pending_timeout) : Time::duration(pending_timeout_under_load);
  }
  /// How many of the connections to close now. `since` says when one was accepted, the earliest first.
  template <typename Connections = std::vector<Time>, typename Since = std::identity>
  static std::size_t to_evict(const Connections& connections, Time now, Since since = {}) {
    const auto at_most = timeout_for(connections.size());
    const auto has_time = [&](Time accepted) { return now - accepted < at_most; };
    return static_cast<std::size_t>(std::ranges::find_if(connections, has_time, since) - connections.begin());
  }
  /// Whether one more may come in beside `waiting` others. Otherwise they stay outside, where the system keeps them.
  static bool has_capacity(std::size_t waiting) { return waiting < max_pending; }
};

/// The pause after an accept() for which there was no descriptor or memory: the next one would fail at once, again and
/// again.
class AcceptPause {
 public:
  using Time = PendingLimit::Time;

  static constexpr auto duration = std::chrono::milliseconds(100);

  /// `error` is that of accept(). Returns true if a pause begins.
  bool on_error(int error, Time now) {
    if (error == EAGAIN || error == ECONNABORTED || error == EINTR) return false;
    end_ = now + duration;
    return true;
  }
  bool is_over(Time now) const { return now >= end_; }
  Time end() const { return end_; }

 private:
  Time end_{};
};

}  // namespace tutti
