#pragma once
// One rank of the comparison.
#include "local_sgd/options.h"
#include "tutti/core/environment.h"

namespace tutti::bench {

/// Trains with each method for all seeds. Rank 0 prints the table.
int run_local_sgd_rank(const LocalSGDBenchOptions& options, const Environment& environment);

}  // namespace tutti::bench
