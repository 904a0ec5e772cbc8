#pragma once
// What the user of `tutti bench sync` and `tutti bench nlp` sees.
#include "report/machine.h"
#include "report/results.h"
#include "sync/options.h"

namespace tutti::bench {

/// Prints the table with what belongs to it, writes options.json if that is set, and says on standard error which
/// results are wrong. `model`: what was trained, a line of Markdown. Returns the exit code: 1 where some are.
int report(const Results& results, const SyncOptions& options, const Machine& machine, const std::string& model);

/// What `tutti bench sync` trains.
std::string describe_gpt(const SyncOptions& options);

/// Writes options.json: an array with one object for each row. Throws std::runtime_error.
void write_json(const Results& results, const SyncOptions& options, const Machine& machine);

}  // namespace tutti::bench
