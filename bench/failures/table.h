#pragma once
// The figures of `tutti bench failures`.
#include <string>
#include <vector>

#include "failures/options.h"
#include "failures/rank.h"
#include "report/machine.h"

namespace tutti::bench {

struct FailuresRow {
  std::string failure;
  std::string during;
  std::vector<double> seconds{};  ///< of each trial, until the last survivor knew
  int misnamed = 0;               ///< trials in which a survivor did not name a rank at fault, or did not know
};

/// Adds a trial among `ranks` ranks. Of two nodes one is cut off: each names ranks of the other.
void add_trial(FailuresRow& row, const std::vector<Moment>& moments, int ranks);

/// The table and what belongs to it, as Markdown.
std::string failures_markdown(const std::vector<FailuresRow>& rows, const FailuresOptions& options,
                              const Machine& machine);

/// An array with one object for each row.
std::string failures_json(const std::vector<FailuresRow>& rows, const FailuresOptions& options, const Machine& machine);

}  // namespace tutti::bench
