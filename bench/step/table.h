#pragma once
// The report of `tutti bench step`.
#include <string>
#include <vector>

#include "report/machine.h"
#include "step/options.h"

namespace tutti::bench {

struct Figure {
  std::string name;
  std::string unit;
  std::vector<double> libtorch{};  ///< one value for each repeat; empty if LibTorch has no such part
  std::vector<double> tutti{};
};

/// Returns the table and its notes as Markdown. A ratio compares the two sides of one repeat.
std::string step_markdown(const std::vector<Figure>& figures, const StepOptions& options, const Machine& machine);

/// Returns a JSON array with one object for each figure and side.
std::string step_json(const std::vector<Figure>& figures, const StepOptions& options, const Machine& machine);

}  // namespace tutti::bench
