#pragma once
// A run that no launcher started: starts the ranks, and Python's, and reports what they leave.
#include "sync/options.h"

namespace tutti::bench {

/// Returns the exit code: 0 also when two nodes were asked for and this machine cannot make them, which is said.
int orchestrate(const SyncOptions& options);

}  // namespace tutti::bench
