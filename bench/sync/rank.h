#pragma once
// One rank of the benchmark.
#include "sync/options.h"
#include "tutti/core/environment.h"

namespace tutti::bench {

/// Joins the others and takes the figures with them. Rank 0 leaves them in options.results, or reports them where that
/// is empty. Returns the exit code.
int run_rank(const SyncOptions& options, const Environment& environment);

}  // namespace tutti::bench
