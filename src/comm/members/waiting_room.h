#pragma once
// How many strangers may stand at a door, and for how long. Pure.
//
// Whoever belongs to the job proves it in milliseconds, so those who have waited long are the ones to lose. A crowd of
// them costs the job a moment, not its descriptors.
#include <chrono>
#include <cstddef>
#include <vector>

namespace tutti::comm {

class WaitingRoom {
 public:
  using Time = std::chrono::steady_clock::time_point;

  static constexpr std::size_t places = 256;
  static constexpr auto patience = std::chrono::seconds(10);
  static constexpr auto patience_in_a_crowd = std::chrono::milliseconds(250);

  /// How long one of `waiting` may stay.
  static Time::duration longest(std::size_t waiting);
  /// How many of those that came at `since`, the earliest first, are turned away now.
  static std::size_t turned_away(const std::vector<Time>& since, Time now);
  /// Whether one more may come in beside `waiting` others. Otherwise they stay outside, where the system keeps them.
  static bool has_place(std::size_t waiting) { return waiting < places; }
};

}  // namespace tutti::comm
