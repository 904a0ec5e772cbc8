#pragma once
// What is drawn of a series: fewer points, a smoothed line, the range. Pure.
#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "tracking/report/run_reader.h"

namespace tutti {

/// Indices of at most about `most` points, ascending: all finite ones where they are few, else the lowest and the
/// highest of each piece of the axis, so that spikes stay.
std::vector<std::size_t> shown_points(const std::vector<Point>& points, std::size_t most);

/// Whether a smoothed line would tell more than the points alone: they are many, and jump.
bool is_noisy(const std::vector<Point>& points);

/// Exponential moving average over the finite points; other values stay. `window`: how many points weigh most of it. It
/// grows to that from one, so that the steep beginning of a curve is not dragged behind.
std::vector<double> smoothed(const std::vector<Point>& points, double window);

/// Lowest and highest finite value.
std::optional<std::pair<double, double>> finite_range(const std::vector<Point>& points);

}  // namespace tutti
