#pragma once
// The figures of `tutti bench failures`.
#include <string>
#include <vector>

#include "failures/options.h"
#include "failures/trial.h"
#include "report/machine.h"

namespace tutti::bench {

/// Returns the table and its notes as Markdown.
std::string failures_markdown(const std::vector<FailuresRow>& rows, const FailuresOptions& options,
                              const Machine& machine);

/// Returns a JSON array with one object for each row.
std::string failures_json(const std::vector<FailuresRow>& rows, const FailuresOptions& options, const Machine& machine);

}  // namespace tutti::bench
