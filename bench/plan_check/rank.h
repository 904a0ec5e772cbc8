#pragma once
// One rank that trains, for comparison with the prediction.
#include <vector>

#include "plan_check/options.h"
#include "tutti/core/environment.h"

namespace tutti::bench {

/// Runs the steps with the other ranks, synchronized as the first of options.exchanges says. Rank 0 writes the times to
/// options.results. Returns the exit code.
int run_plan_check_rank(const PlanCheckOptions& options, const Environment& environment);

/// Returns the median, in milliseconds, of the times in `file`. Throws std::runtime_error if there are none.
double read_step_ms(const std::string& file);

}  // namespace tutti::bench
