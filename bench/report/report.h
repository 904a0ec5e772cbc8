#pragma once
// What the user sees.
#include "report/machine.h"
#include "report/results.h"
#include "sync/options.h"

namespace tutti::bench {

/// Prints the table, writes options.json if that is set, and says on standard error which results are wrong. Returns
/// the exit code: 1 where some are.
int report(const Results& results, const SyncOptions& options, const Machine& machine);

/// The table and what belongs to it, as Markdown.
std::string markdown(const Results& results, const SyncOptions& options, const Machine& machine);

/// Writes options.json: an array with one object for each row. Throws std::runtime_error.
void write_json(const Results& results, const SyncOptions& options, const Machine& machine);

}  // namespace tutti::bench
