#pragma once
// The report of `tutti bench all-reduce`.
#include <string>

#include "all_reduce/options.h"
#include "report/report.h"

namespace tutti::bench {

/// The cost of one sum.
struct Cost {
  double microseconds = 0;  ///< on the slowest rank
  double cpu_per_byte = 0;  ///< nanoseconds of a rank's process for a byte of its tensor, the mean of the ranks
};

/// Adds a measurement to its two rows, "time" and "CPU".
void add_cost(Results& results, const std::string& system, int ranks, const std::string& dtype, std::int64_t bytes,
              const Cost& cost);

/// Prints the tables and writes the rows. Returns the exit code: 1 if a result is wrong.
int report_all_reduce(Report& report, const Results& results, const AllReduceOptions& options);

}  // namespace tutti::bench
