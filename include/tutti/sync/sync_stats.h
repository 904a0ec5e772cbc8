#pragma once
// What synchronization did and cost on this rank.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace tutti {

/// Counts since the reducer was made.
struct SyncStats {
  std::int64_t passes = 0;           ///< backward passes
  std::int64_t rounds = 0;           ///< synchronizations
  std::int64_t rounds_avoided = 0;   ///< passes that did not synchronize
  std::int64_t rounds_in_step = 0;   ///< of the rounds, those that only step() could run: not overlapped
  std::int64_t gradients_moved = 0;  ///< gradients that had left their slot (net->zero_grad(), user code)
  /// Gradient bytes given to others, as messages or in shared memory: 2 n (N - 1) / N a round, for n bytes and N ranks,
  /// less with a comm hook.
  std::int64_t bytes_sent = 0;
  double seconds_waiting = 0;  ///< time that the loop stood still for rounds: what was not hidden behind backward
  /// By rank: how much less it waited in rounds than the rank that waited longest. Whoever keeps the others waiting
  /// hardly waits itself, so the largest is the slowest rank. The last round is not in it yet.
  std::vector<double> seconds_late{};

  /// bytes_sent / rounds, or 0.
  double bytes_per_round() const {
    return rounds > 0 ? static_cast<double>(bytes_sent) / static_cast<double>(rounds) : 0;
  }
  /// seconds_waiting / rounds, or 0.
  double seconds_waiting_per_round() const { return rounds > 0 ? seconds_waiting / static_cast<double>(rounds) : 0; }

  /// Adds what another reducer counted.
  SyncStats& operator+=(const SyncStats& other);
};

inline SyncStats& SyncStats::operator+=(const SyncStats& other) {
  passes += other.passes;
  rounds += other.rounds;
  rounds_avoided += other.rounds_avoided;
  rounds_in_step += other.rounds_in_step;
  gradients_moved += other.gradients_moved;
  bytes_sent += other.bytes_sent;
  seconds_waiting += other.seconds_waiting;
  seconds_late.resize(std::max(seconds_late.size(), other.seconds_late.size()));
  for (std::size_t rank = 0; rank < other.seconds_late.size(); ++rank) seconds_late[rank] += other.seconds_late[rank];
  return *this;
}

}  // namespace tutti
