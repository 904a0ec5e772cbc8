#pragma once
// The report of `tutti bench all-reduce`.
#include <string>

#include "all_reduce/options.h"
#include "all_reduce/results.h"

namespace tutti::bench {

/// Prints the tables, writes options.json if that is set, and names wrong results on standard error. Returns the exit
/// code: 1 if a result is wrong.
int report(const AllReduceResults& results, const AllReduceOptions& options);

}  // namespace tutti::bench
