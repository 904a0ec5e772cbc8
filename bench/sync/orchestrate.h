#pragma once
// A run without a launcher: starts the ranks of C++ and Python and reports their results.
#include "sync/options.h"

namespace tutti::bench {

/// Returns the exit code. On a machine that cannot make the requested nodes, prints the reason and returns 0.
int orchestrate(const SyncOptions& options);

}  // namespace tutti::bench
