#pragma once
// One rank that trains, to be held against what was predicted of it.
#include <vector>

#include "plan_check/options.h"
#include "tutti/core/environment.h"

namespace tutti::bench {

/// Takes the steps with the others, in the first of options.exchanges; rank 0 leaves their times in options.results.
/// Returns the exit code.
int run_plan_check_rank(const PlanCheckOptions& options, const Environment& environment);

/// The median in milliseconds of what run_plan_check_rank() left in `file`. Throws std::runtime_error.
double read_step_ms(const std::string& file);

}  // namespace tutti::bench
