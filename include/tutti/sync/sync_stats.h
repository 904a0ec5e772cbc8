#pragma once
// Counters and times of synchronization on this rank.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace tutti {

/// Counters since the construction of the reducer.
struct SyncStats {
  std::int64_t passes = 0;            ///< backward passes
  std::int64_t syncs = 0;             ///< synchronizations; local steps (Local SGD) are none
  std::int64_t syncs_skipped = 0;     ///< passes that did not synchronize, with those of local steps
  std::int64_t syncs_in_step = 0;     ///< syncs that ran inside step(), without overlap with backward
  std::int64_t gradients_copied = 0;  ///< gradients that lay outside their slot (net->zero_grad(), user code)
  /// Gradient bytes sent to other ranks, as messages or through shared memory: 2 n (N - 1) / N per synchronization, for
  /// n bytes and N ranks; less with a gradient codec.
  std::int64_t bytes_sent = 0;
  double seconds_waiting = 0;  ///< seconds that the loop waited for syncs: the time that backward did not overlap
  /// By rank: seconds by which its waiting time was shorter than that of the rank that waited longest. The straggler
  /// hardly waits itself, so the largest value belongs to the slowest rank. The last synchronization is not included.
  std::vector<double> straggler_seconds{};

  /// bytes_sent / syncs, or 0.
  double bytes_per_sync() const { return syncs > 0 ? static_cast<double>(bytes_sent) / static_cast<double>(syncs) : 0; }
  /// seconds_waiting / syncs, or 0.
  double seconds_waiting_per_sync() const { return syncs > 0 ? seconds_waiting / static_cast<double>(syncs) : 0; }

  /// Adds the counters of another reducer.
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
