#pragma once
// One rank of `tutti bench scale`.
#include <cstdint>
#include <string>

#include "scale/options.h"
#include "tutti/core/environment.h"

namespace tutti::bench {

/// What a process holds while it trains.
struct Holdings {
  std::int64_t threads = 0;
  std::int64_t descriptors = 0;
  std::int64_t page_tables = 0;  ///< bytes
};

/// Meets the others, trains with them, and leaves the most that any rank held in options.results. Returns the exit
/// code.
int run_scale_rank(const ScaleOptions& options, const Environment& environment);

/// What run_scale_rank() left in `file`. Throws std::runtime_error.
Holdings read_holdings(const std::string& file);

}  // namespace tutti::bench
