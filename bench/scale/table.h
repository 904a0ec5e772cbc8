#pragma once
// The figures of `tutti bench scale`.
#include <string>
#include <vector>

#include "report/machine.h"
#include "scale/options.h"
#include "scale/rank.h"

namespace tutti::bench {

/// One number of ranks, that meet or do not; times in seconds, one for each repeat, of all processes together.
struct ScaleRow {
  int ranks = 0;
  bool alone = false;
  std::vector<double> seconds{};
  std::vector<double> cpu{};
  std::vector<double> cpu_in_kernel{};
  std::vector<double> cpu_in_main{};
  ResourceUsage most{};  ///< of the last repeat
};

/// The table and what belongs to it, as Markdown.
std::string scale_markdown(const std::vector<ScaleRow>& rows, const ScaleOptions& options, const Machine& machine);

/// An array with one object for each row and figure.
std::string scale_json(const std::vector<ScaleRow>& rows, const ScaleOptions& options, const Machine& machine);

}  // namespace tutti::bench
