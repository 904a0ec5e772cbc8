#pragma once
// One rank of the comparison.
#include "local_sgd/options.h"

namespace tutti::bench {

/// Trains with each method for all seeds. Rank 0 writes the results to options.results, or prints the report if that is
/// empty. Returns the exit code.
int run_local_sgd_rank(LocalSGDBenchOptions options, const Environment& environment);

}  // namespace tutti::bench
