#pragma once
// One rank of `tutti bench all-reduce`.
#include "all_reduce/options.h"
#include "tutti/core/environment.h"

namespace tutti::bench {

/// Joins the others and takes the figures with them. Rank 0 leaves them in options.results, or reports them where that
/// is empty. Returns the exit code.
int run_all_reduce_rank(const AllReduceOptions& options, const Environment& environment);

}  // namespace tutti::bench
