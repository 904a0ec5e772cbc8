#pragma once
// A scalar over the steps as an inline SVG, with one line per run.
#include <string>
#include <string_view>
#include <vector>

#include "tracking/report/run_reader.h"

namespace tutti {

/// A narrow window shows `narrow` instead of `wide`; `half` is always shown.
enum class ChartSize { wide, half, narrow };

/// The CSS classes of a figure.
constexpr std::string_view figure_class(ChartSize size) {
  return size == ChartSize::wide ? "chart wide" : size == ChartSize::half ? "chart" : "chart narrow";
}

/// A figure with the runs that have this scalar. Each run keeps its number and colour. For a noisy run, a smoothed line
/// is drawn over a faint line of raw values. NaN and infinities are marks at the axis. A scalar that companion_of()
/// returns is drawn in the same figure with dashes, where its values differ.
std::string curve_figure(const std::string& scalar, const std::vector<RunRecord>& runs, ChartSize size);

/// The scalar that belongs into the figure of `scalar`: the norm after clipping into that of "grad_norm". Empty if
/// there is none.
std::string companion_of(const std::string& scalar);

}  // namespace tutti
