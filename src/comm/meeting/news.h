#pragma once
// What ranks tell all others of some of them. Pure.
#include <string>
#include <vector>

namespace tutti::comm {

/// By their ranks in the job, ascending.
struct News {
  std::vector<int> silent;  ///< given up: not heard of for long
  std::vector<int> ended;   ///< whose process has ended without a good-bye: they leave no word any more
  std::vector<int> left;    ///< have said good-bye

  /// The same as a piece of a list that ranks append to.
  std::string to_entries() const;
  /// What a list holds. Pieces that nobody can have written are left out.
  static News from_entries(const std::string& entries, int world_size);
};

}  // namespace tutti::comm
