#pragma once
// One rank of `tutti bench scale`.
#include <cstdint>
#include <string>

#include "scale/options.h"
#include "tutti/core/environment.h"

namespace tutti::bench {

/// What a process holds while it trains, and what its main() costs: all but LibTorch's start and end.
struct ResourceUsage {
  std::int64_t threads = 0;
  std::int64_t descriptors = 0;
  std::int64_t page_tables = 0;  ///< bytes
  double cpu = 0;                ///< seconds, of all threads
};

/// Meets the others, trains with them, leaves, and adds its account to options.results. Returns the exit code.
int run_scale_rank(const ScaleOptions& options, const Environment& environment);

/// The accounts that `ranks` ranks left in `file`: the most that any of them held, and the CPU of all. Throws
/// std::runtime_error.
ResourceUsage read_usage(const std::string& file, int ranks);

}  // namespace tutti::bench
