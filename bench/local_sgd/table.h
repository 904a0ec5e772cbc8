#pragma once
// The report of `tutti bench local-sgd`.
#include "local_sgd/options.h"
#include "report/report.h"

namespace tutti::bench {

/// Prints means over the seeds with their spread, and ratios to the first method; writes a row for each training run.
/// `runs` has one row for each: "method", "seed", "seconds", "bytes_sent" and "seconds_blocked" of rank 0,
/// "held_out_loss" at the end, and "local_steps" (0: every step synchronizes gradients). Returns the exit code.
int report_local_sgd(Report& report, const Results& runs, const LocalSGDBenchOptions& options);

}  // namespace tutti::bench
