#pragma once
// The figures of `tutti bench failures`.
#include <string>
#include <vector>

#include "failures/options.h"
#include "failures/trial.h"
#include "report/machine.h"

namespace tutti::bench {

/// The table and what belongs to it, as Markdown.
std::string failures_markdown(const std::vector<FailuresRow>& rows, const FailuresOptions& options,
                              const Machine& machine);

/// An array with one object for each row.
std::string failures_json(const std::vector<FailuresRow>& rows, const FailuresOptions& options, const Machine& machine);

}  // namespace tutti::bench
