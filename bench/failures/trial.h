#pragma once
// The result of one job in which a rank failed on purpose. No I/O.
#include <cstdint>
#include <string>
#include <vector>

namespace tutti::bench {

/// What a rank records: the time of its failure, or of its error about the failure, by the machine's steady clock.
struct Moment {
  int rank = 0;
  std::int64_t nanoseconds = 0;
  int process = 0;
  std::vector<int> named{};  ///< failed ranks that the error names
  std::string said{};        ///< the error's first line; empty: the rank itself failed at this time
  /// Of a killed rank, in seconds: how long the kernel took to close its descriptors. Negative: not known.
  double closing = -1;
};

struct FailuresRow {
  std::string failure;
  std::string during;
  std::vector<double> seconds{};  ///< of each trial, until the last survivor's error
  std::vector<double> closing{};  ///< the closing times of killed ranks
  int misnamed = 0;               ///< trials in which a survivor named no failed rank, or had no error
};

/// Adds a trial with `ranks` ranks. For "cut", the ranks of each of the two nodes are to name ranks of the other node.
/// Returns true if every survivor named failed ranks only, and at least one.
bool add_trial(FailuresRow& row, const std::vector<Moment>& moments, int ranks);

}  // namespace tutti::bench
