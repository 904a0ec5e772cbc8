#pragma once
// The page's tables: what each run came to, and what it was started with.
#include <string>
#include <vector>

#include "tracking/report/run_reader.h"

namespace tutti {

/// Last and best loss, steps, wall time, rate: a row a run.
std::string summary_table(const std::vector<RunRecord>& runs);

/// A row a hyperparameter, a column a run; rows in which runs differ are marked. Empty where there are none.
std::string hyperparameter_table(const std::vector<RunRecord>& runs);

/// The texts that runs have logged, the newest of each name first. Empty where there are none.
std::string text_section(const std::vector<RunRecord>& runs);

}  // namespace tutti
