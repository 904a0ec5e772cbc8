#pragma once
// Predicted and measured times.
#include <string>
#include <vector>

#include "plan_check/options.h"
#include "report/machine.h"

namespace tutti::bench {

struct PlanCheckRow {
  plan::Layout layout;
  std::string rate{};  ///< empty on one node
  std::string exchange{};
  std::vector<double> predicted{};  ///< milliseconds of a step, one for each repeat
  std::vector<double> measured{};
};

/// Returns (predicted - measured) / measured of the medians.
double error_of(const PlanCheckRow& row);

/// Returns the table as Markdown. `notes`: the inputs of the predictions, one line each.
std::string plan_check_markdown(const std::vector<PlanCheckRow>& rows, const PlanCheckOptions& options,
                                const std::vector<std::string>& notes, const Machine& machine);

/// Returns a JSON array with one object for each row.
std::string plan_check_json(const std::vector<PlanCheckRow>& rows, const PlanCheckOptions& options,
                            const Machine& machine);

}  // namespace tutti::bench
