#pragma once
// The report of `tutti bench sync` and `tutti bench nlp`.
#include <string>

#include "report/report.h"
#include "sync/options.h"

namespace tutti::bench {

/// Prints the table of systems and modes and writes the rows. `model`: a description in a line of Markdown. Returns the
/// exit code: 1 if a result is wrong.
int report_sync(Report& report, Results results, const SyncOptions& options, const std::string& model);

}  // namespace tutti::bench
