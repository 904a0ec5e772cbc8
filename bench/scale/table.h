#pragma once
// The figures of `tutti bench scale`.
#include <string>
#include <vector>

#include "report/machine.h"
#include "scale/options.h"
#include "scale/rank.h"

namespace tutti::bench {

/// One number of ranks; times in seconds, one for each repeat.
struct ScaleRow {
  int ranks = 0;
  std::vector<double> seconds{};
  std::vector<double> cpu{};        ///< of all processes together
  std::vector<double> cpu_alone{};  ///< of as many processes that do not meet
  Holdings most{};
  Holdings most_alone{};
};

/// The table and what belongs to it, as Markdown.
std::string scale_markdown(const std::vector<ScaleRow>& rows, const ScaleOptions& options, const Machine& machine);

/// An array with one object for each row and figure.
std::string scale_json(const std::vector<ScaleRow>& rows, const ScaleOptions& options, const Machine& machine);

}  // namespace tutti::bench
