#pragma once
// The report of `tutti bench all-reduce`.
#include <string>

#include "all_reduce/options.h"
#include "report/report.h"

namespace tutti::bench {

/// Returns the labels of a measurement.
Labels all_reduce_labels(const std::string& system, int ranks, const std::string& dtype, std::int64_t bytes);

/// Prints the tables and writes the rows. Returns the exit code: 1 if a result is wrong.
int report_all_reduce(Report& report, const Results& results, const AllReduceOptions& options);

}  // namespace tutti::bench
