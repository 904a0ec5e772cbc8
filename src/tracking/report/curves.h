#pragma once
// A scalar over the steps, as an inline SVG: one line a run.
#include <string>
#include <vector>

#include "tracking/report/run_reader.h"

namespace tutti {

enum class ChartSize { wide, half };

/// A figure with the runs that have this scalar; runs keep their number, and with it their colour. A noisy run is a
/// faint line under a smoothed one. NaN and infinities are marks at the axis.
std::string curve_figure(const std::string& scalar, const std::vector<RunRecord>& runs, ChartSize size);

}  // namespace tutti
