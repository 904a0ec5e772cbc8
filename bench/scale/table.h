#pragma once
// The report of `tutti bench scale`.
#include <string>
#include <vector>

#include "report/machine.h"
#include "scale/options.h"
#include "scale/rank.h"

namespace tutti::bench {

/// One number of ranks, connected or not. Times are sums over all processes in seconds, one for each repeat.
struct ScaleRow {
  int ranks = 0;
  bool alone = false;
  std::vector<double> seconds{};
  std::vector<double> cpu{};
  std::vector<double> cpu_in_kernel{};
  std::vector<double> cpu_in_main{};
  ResourceUsage most{};  ///< of the last repeat
};

/// Returns the table and its notes as Markdown.
std::string scale_markdown(const std::vector<ScaleRow>& rows, const ScaleOptions& options, const Machine& machine);

/// Returns a JSON array with one object for each row and figure.
std::string scale_json(const std::vector<ScaleRow>& rows, const ScaleOptions& options, const Machine& machine);

}  // namespace tutti::bench
