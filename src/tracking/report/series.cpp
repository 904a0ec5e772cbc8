#include "tracking/report/series.h"

#include <algorithm>
#include <cmath>

namespace tutti {

std::vector<std::size_t> shown_points(const std::vector<Point>& points, std::size_t most) {
  std::vector<std::size_t> finite;
  finite.reserve(points.size());
  for (std::size_t i = 0; i < points.size(); ++i) {
    if (std::isfinite(points[i].value)) finite.push_back(i);
  }
  if (finite.size() <= most) return finite;

  const std::size_t buckets = std::max<std::size_t>(1, most / 2);
  const auto first_step = static_cast<double>(points[finite.front()].step);
  const double span = static_cast<double>(points[finite.back()].step) - first_step;
  const auto bucket_of = [&](std::size_t i) {
    const double share = (static_cast<double>(points[i].step) - first_step) / span;
    return std::min(buckets - 1, static_cast<std::size_t>(share * static_cast<double>(buckets)));
  };
  const auto is_lower = [&](std::size_t a, std::size_t b) { return points[a].value < points[b].value; };
  std::vector<std::size_t> shown{finite.front()};
  for (auto begin = finite.begin(); begin != finite.end();) {
    const auto end = std::find_if(begin, finite.end(), [&](auto i) { return bucket_of(i) != bucket_of(*begin); });
    const auto [low, high] = std::minmax_element(begin, end, is_lower);
    for (const auto i : {std::min(*low, *high), std::max(*low, *high)}) {
      if (i != shown.back()) shown.push_back(i);
    }
    begin = end;
  }
  if (shown.back() != finite.back()) shown.push_back(finite.back());
  return shown;
}

bool is_noisy(const std::vector<Point>& points) {
  constexpr std::size_t fewest = 50;
  constexpr double share_of_range = 0.004;
  const auto range = finite_range(points);
  if (!range || points.size() < fewest) return false;
  std::vector<double> bends;
  for (std::size_t i = 2; i < points.size(); ++i) {
    const double bend = points[i].value - 2 * points[i - 1].value + points[i - 2].value;
    if (std::isfinite(bend)) bends.push_back(std::abs(bend));
  }
  if (bends.empty()) return false;
  // The median ignores the few jumps of a step schedule.
  const auto middle = bends.begin() + static_cast<std::ptrdiff_t>(bends.size() / 2);
  std::nth_element(bends.begin(), middle, bends.end());
  return *middle > share_of_range * (range->second - range->first);
}

std::vector<double> smoothed(const std::vector<Point>& points, double window) {
  constexpr double growth = 0.2;  // points by which the window grows at each point
  double average = 0;
  double reach = 1;
  std::vector<double> line;
  line.reserve(points.size());
  for (const auto& point : points) {
    if (!std::isfinite(point.value)) {
      line.push_back(point.value);
      continue;
    }
    average += 2 / (reach + 1) * (point.value - average);  // the first point has weight 1
    reach = std::min(reach + growth, std::max(window, 1.0));
    line.push_back(average);
  }
  return line;
}

std::optional<std::pair<double, double>> finite_range(const std::vector<Point>& points) {
  std::optional<std::pair<double, double>> range;
  for (const auto& [step, value] : points) {
    if (!std::isfinite(value)) continue;
    if (!range) range.emplace(value, value);
    range->first = std::min(range->first, value);
    range->second = std::max(range->second, value);
  }
  return range;
}

}  // namespace tutti
