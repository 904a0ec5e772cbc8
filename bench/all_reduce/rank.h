#pragma once
// One rank of `tutti bench all-reduce`.
#include "all_reduce/options.h"

namespace tutti::bench {

/// Connects to the other ranks and measures with them. Rank 0 writes the results to options.results, or prints the
/// report if that is empty. Returns the exit code.
int run_all_reduce_rank(AllReduceOptions options, const Environment& environment);

}  // namespace tutti::bench
