#pragma once
// The points of a series that the report draws, its smoothed line and its range. No I/O.
#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "tracking/report/run_reader.h"

namespace tutti {

/// The indices of about `most` points, ascending. If more are finite, the lowest and highest of each piece of the axis,
/// so that spikes stay visible.
std::vector<std::size_t> shown_points(const std::vector<Point>& points, std::size_t most);

/// True if a smoothed line helps: the points are many and noisy.
bool is_noisy(const std::vector<Point>& points);

/// The exponential moving average of the finite points; other values stay. `window`: the number of points with most of
/// the weight. It grows from one, so that the line follows the steep beginning of a curve.
std::vector<double> smoothed(const std::vector<Point>& points, double window);

/// The lowest and highest finite value.
std::optional<std::pair<double, double>> finite_range(const std::vector<Point>& points);

}  // namespace tutti
