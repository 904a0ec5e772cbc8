#pragma once
// What the user of `tutti bench all-reduce` sees.
#include <string>

#include "all_reduce/options.h"
#include "all_reduce/results.h"

namespace tutti::bench {

/// Prints the tables, writes options.json if that is set, and says on standard error which results are wrong. Returns
/// the exit code: 1 where some are.
int report(const AllReduceResults& results, const AllReduceOptions& options);

}  // namespace tutti::bench
