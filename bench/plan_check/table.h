#pragma once
// What was predicted, and what came.
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

/// (predicted - measured) / measured, of their medians.
double error_of(const PlanCheckRow& row);

/// The table and what belongs to it, as Markdown. `notes`: what the predictions rest on, a line each.
std::string plan_check_markdown(const std::vector<PlanCheckRow>& rows, const PlanCheckOptions& options,
                                const std::vector<std::string>& notes, const Machine& machine);

/// An array with one object for each row.
std::string plan_check_json(const std::vector<PlanCheckRow>& rows, const PlanCheckOptions& options,
                            const Machine& machine);

}  // namespace tutti::bench
