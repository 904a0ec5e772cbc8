#pragma once
// Updates of the status of some ranks, published to all ranks. No I/O.
#include <string>
#include <vector>

namespace tutti::comm {

/// By their ranks in the job, ascending.
struct PeerStatusUpdate {
  std::vector<int> suspected;  ///< failed: missed heartbeats for the heartbeat timeout
  std::vector<int> exited;     ///< exited without an exit announcement: they publish no failure report any more
  std::vector<int> left;       ///< have announced their exit

  /// The same as a piece of a list that ranks append to.
  std::string encode() const;
  /// Parses a list. Leaves malformed entries out.
  static PeerStatusUpdate decode(const std::string& entries, int world_size);
};

}  // namespace tutti::comm
