#pragma once
// One rank of `tutti bench failures`.
#include <cstdint>
#include <string>
#include <vector>

#include "failures/options.h"
#include "tutti/core/environment.h"

namespace tutti::bench {

/// What a rank leaves: when it failed, or when it knew of it, by the machine's clock.
struct Moment {
  int rank = 0;
  std::int64_t nanoseconds = 0;
  int process = 0;
  std::vector<int> named{};  ///< none: it is the one that failed
  std::string said{};        ///< the error's first line
};

/// Works with the others until the last rank fails, and appends its moment to options.results. Returns the exit code.
int run_failures_rank(const FailuresOptions& options, const Environment& environment);

/// What the ranks left in `file`.
std::vector<Moment> read_moments(const std::string& file);

}  // namespace tutti::bench
