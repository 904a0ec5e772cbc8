#pragma once
// The report of `tutti bench sync` and `tutti bench nlp`.
#include "report/machine.h"
#include "report/results.h"
#include "sync/options.h"

namespace tutti::bench {

/// Prints the table with its notes, writes options.json if that is set, and names wrong results on standard error.
/// `model`: a description of the model in a line of Markdown. Returns the exit code: 1 if a result is wrong.
int report(const Results& results, const SyncOptions& options, const Machine& machine, const std::string& model);

/// Describes the model of `tutti bench sync`.
std::string describe_gpt(const SyncOptions& options);

/// Writes options.json: a JSON array with one object for each row. Throws std::runtime_error.
void write_json(const Results& results, const SyncOptions& options, const Machine& machine);

}  // namespace tutti::bench
