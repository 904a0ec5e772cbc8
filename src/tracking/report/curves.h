#pragma once
// A scalar over the steps, as an inline SVG: one line a run.
#include <string>
#include <string_view>
#include <vector>

#include "tracking/report/run_reader.h"

namespace tutti {

/// `wide` is not shown in narrow windows, where `narrow` stands for it; `half` is always shown.
enum class ChartSize { wide, half, narrow };

/// The classes of a figure's element.
constexpr std::string_view figure_class(ChartSize size) {
  return size == ChartSize::wide ? "chart wide" : size == ChartSize::half ? "chart" : "chart narrow";
}

/// A figure with the runs that have this scalar; runs keep their number, and with it their colour. A noisy run is a
/// faint line under a smoothed one. NaN and infinities are marks at the axis.
std::string curve_figure(const std::string& scalar, const std::vector<RunRecord>& runs, ChartSize size);

}  // namespace tutti
