#pragma once
// The time of a step by rank and stage, from the scalars "time/rank_R/STAGE".
#include <map>
#include <string>
#include <vector>

#include "tracking/report/curves.h"
#include "tracking/report/run_reader.h"

namespace tutti {

/// Mean seconds per step, by stage.
using StageTimes = std::map<std::string, double>;

/// The times by rank. A value holds the seconds since the previous log, so it covers the steps since then or since the
/// beginning of the session.
std::map<int, StageTimes> step_times(const RunRecord& run);

/// True for the names that step_times reads.
bool is_step_time(const std::string& scalar);

/// A figure with one bar per rank, `wide` or `narrow`; empty if no run has such scalars.
std::string step_times_figure(const std::vector<RunRecord>& runs, ChartSize size = ChartSize::wide);

}  // namespace tutti
