#pragma once
// The figures of `tutti bench step`.
#include <string>
#include <vector>

#include "report/machine.h"
#include "step/options.h"

namespace tutti::bench {

struct Figure {
  std::string name;
  std::string unit;
  std::vector<double> libtorch{};  ///< one for each repeat; none where LibTorch has no such thing
  std::vector<double> tutti{};
};

/// The table and what belongs to it, as Markdown. Ratios are of the two sides of one repeat.
std::string step_markdown(const std::vector<Figure>& figures, const StepOptions& options, const Machine& machine);

/// An array with one object for each figure and side.
std::string step_json(const std::vector<Figure>& figures, const StepOptions& options, const Machine& machine);

}  // namespace tutti::bench
