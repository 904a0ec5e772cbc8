#pragma once
// What became of one job in which a rank failed on purpose. Pure.
#include <cstdint>
#include <string>
#include <vector>

namespace tutti::bench {

/// What a rank leaves: when it failed, or when it knew of it, by the machine's clock.
struct Moment {
  int rank = 0;
  std::int64_t nanoseconds = 0;
  int process = 0;
  std::vector<int> named{};  ///< ranks at fault, by the error
  std::string said{};        ///< the error's first line; empty: this is the moment at which the rank failed
};

struct FailuresRow {
  std::string failure;
  std::string during;
  std::vector<double> seconds{};  ///< of each trial, until the last survivor knew
  int misnamed = 0;               ///< trials in which a survivor did not name a rank at fault, or did not know
};

/// Adds a trial among `ranks` ranks. Of two nodes one is cut off: each names ranks of the other. Returns whether every
/// survivor named a rank at fault, and none that is not.
bool add_trial(FailuresRow& row, const std::vector<Moment>& moments, int ranks);

}  // namespace tutti::bench
