#pragma once
// One rank of `tutti bench failures`.
#include <string>
#include <vector>

#include "failures/options.h"
#include "failures/trial.h"
#include "tutti/core/environment.h"

namespace tutti::bench {

/// Works with the others until the last rank fails, and appends one Moment to options.results. Returns the exit code.
int run_failures_rank(const FailuresOptions& options, const Environment& environment);

/// Reads the Moments that ranks appended to `file`.
std::vector<Moment> read_moments(const std::string& file);

}  // namespace tutti::bench
