#pragma once
// One rank of `tutti bench sync`.
#include <string>

#include "sync/options.h"

namespace tutti::bench {

/// Connects to the other ranks and measures with them. Rank 0 writes the results to options.results, or prints the
/// report if that is empty. Returns the exit code.
int run_sync_rank(SyncOptions options, const Environment& environment);

/// Describes the model and its training in a line of Markdown.
std::string describe_sync_model(const SyncOptions& options);

}  // namespace tutti::bench
