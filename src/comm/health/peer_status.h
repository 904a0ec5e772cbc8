#pragma once
// What ranks tell all others of some of them. Pure.
#include <string>
#include <vector>

namespace tutti::comm {

/// By their ranks in the job, ascending.
struct PeerStatusUpdate {
  std::vector<int> suspected;  ///< given up: not heard of for long
  std::vector<int> exited;     ///< whose process has ended without a good-bye: they leave no word any more
  std::vector<int> left;       ///< have said good-bye

  /// The same as a piece of a list that ranks append to.
  std::string encode() const;
  /// What a list holds. Pieces that nobody can have written are left out.
  static PeerStatusUpdate decode(const std::string& entries, int world_size);
};

}  // namespace tutti::comm
