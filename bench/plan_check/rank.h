#pragma once
// One rank that trains, for comparison with the prediction.
#include "plan_check/options.h"

namespace tutti::bench {

/// Runs the steps with the other ranks, synchronized as the first of options.exchanges says. Rank 0 writes the
/// milliseconds of each step to options.results. Returns the exit code.
int run_plan_check_rank(const PlanCheckOptions& options, const Environment& environment);

}  // namespace tutti::bench
