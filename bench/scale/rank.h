#pragma once
// One rank of `tutti bench scale`.
#include "scale/options.h"
#include "tutti/core/environment.h"

namespace tutti::bench {

/// What a process holds while it trains.
struct Holdings {
  int threads = 0;
  int descriptors = 0;
};

/// Meets the others, trains with them, and leaves the most that any rank held in options.results. Returns the exit
/// code.
int run_scale_rank(const ScaleOptions& options, const Environment& environment);

/// What run_scale_rank() left in `file`. Throws std::runtime_error.
Holdings read_holdings(const std::string& file);

}  // namespace tutti::bench
