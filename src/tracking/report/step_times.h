#pragma once
// Where a step's time goes, rank by rank: from the scalars "time/rank_R/STAGE".
#include <map>
#include <string>
#include <vector>

#include "tracking/report/curves.h"
#include "tracking/report/run_reader.h"

namespace tutti {

/// Mean seconds a step, by stage.
using StageTimes = std::map<std::string, double>;

/// By rank. A value holds the seconds since the log before it, so it stands for the steps since then, or since the
/// session began.
std::map<int, StageTimes> step_times(const RunRecord& run);

/// True for the names that step_times reads.
bool is_step_time(const std::string& scalar);

/// A figure with one bar a rank, `wide` or `narrow`; empty where no run has such scalars.
std::string step_times_figure(const std::vector<RunRecord>& runs, ChartSize size = ChartSize::wide);

}  // namespace tutti
