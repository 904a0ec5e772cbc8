#pragma once
// What synchronization did and cost on this rank.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace tutti {

/// Counts since the reducer was made.
struct SyncStats {
  std::int64_t passes = 0;            ///< backward passes
  std::int64_t syncs = 0;             ///< synchronizations
  std::int64_t syncs_skipped = 0;     ///< passes that did not synchronize
  std::int64_t syncs_in_step = 0;     ///< of the syncs, those that only step() could run: not overlapped
  std::int64_t gradients_copied = 0;  ///< gradients that had left their slot (net->zero_grad(), user code)
  /// Gradient bytes given to others, as messages or in shared memory: 2 n (N - 1) / N a round, for n bytes and N ranks,
  /// less with a comm hook.
  std::int64_t bytes_sent = 0;
  double seconds_waiting = 0;  ///< time that the loop stood still for syncs: what was not hidden behind backward
  /// By rank: how much less it waited in syncs than the rank that waited longest. Whoever keeps the others waiting
  /// hardly waits itself, so the largest is the slowest rank. The last round is not in it yet.
  std::vector<double> straggler_seconds{};

  /// bytes_sent / syncs, or 0.
  double bytes_per_sync() const { return syncs > 0 ? static_cast<double>(bytes_sent) / static_cast<double>(syncs) : 0; }
  /// seconds_waiting / syncs, or 0.
  double seconds_waiting_per_sync() const { return syncs > 0 ? seconds_waiting / static_cast<double>(syncs) : 0; }

  /// Adds what another reducer counted.
  SyncStats& operator+=(const SyncStats& other);
};

inline SyncStats& SyncStats::operator+=(const SyncStats& other) {
  passes += other.passes;
  syncs += other.syncs;
  syncs_skipped += other.syncs_skipped;
  syncs_in_step += other.syncs_in_step;
  gradients_copied += other.gradients_copied;
  bytes_sent += other.bytes_sent;
  seconds_waiting += other.seconds_waiting;
  straggler_seconds.resize(std::max(straggler_seconds.size(), other.straggler_seconds.size()));
  for (std::size_t rank = 0; rank < other.straggler_seconds.size(); ++rank)
    straggler_seconds[rank] += other.straggler_seconds[rank];
  return *this;
}

}  // namespace tutti
