#pragma once
// One rank of the benchmark.
#include "sync/options.h"
#include "tutti/core/environment.h"

namespace tutti::bench {

/// Connects to the other ranks and measures with them. Rank 0 writes the results to options.results, or prints the
/// report if that is empty. Returns the exit code.
int run_rank(const SyncOptions& options, const Environment& environment);

}  // namespace tutti::bench
