#pragma once
// The page's tables: the results and the hyperparameters of each run.
#include <string>
#include <vector>

#include "tracking/report/run_reader.h"

namespace tutti {

/// Last and best loss, steps, wall time, rate: one row per run.
std::string summary_table(const std::vector<RunRecord>& runs);

/// One row per hyperparameter, one column per run; marks rows in which runs differ. Empty if there are none.
std::string hyperparameter_table(const std::vector<RunRecord>& runs);

/// The logged texts, the newest of each name first. Empty if there are none.
std::string text_section(const std::vector<RunRecord>& runs);

}  // namespace tutti
