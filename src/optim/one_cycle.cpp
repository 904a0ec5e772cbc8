#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include "optim/run_span.h"
#include "tutti/optim/schedules.h"

namespace tutti {

namespace {

constexpr const char* one_cycle_name = "one_cycle";

/// The end of a phase, and the rate and momentum there.
struct Corner {
  double position = 0;
  double factor = 1;
  double momentum = 0;
};

double anneal(AnnealStrategy strategy, double start, double end, double progress) {
  if (strategy == AnnealStrategy::linear) return (end - start) * progress + start;
  return end + (start - end) / 2.0 * (std::cos(std::numbers::pi * progress) + 1.0);
}

/// The corners in order, from the start of the run.
std::vector<Corner> corners_of(double total_steps, const OneCycleOptions& options) {
  const double first = 1.0 / options.div_factor;
  const double last = first / options.final_div_factor;
  const double rise = options.pct_start * total_steps;
  std::vector<Corner> corners = {{0.0, first, options.max_momentum}, {rise - 1.0, 1.0, options.base_momentum}};
  if (options.three_phase) corners.push_back({2.0 * rise - 2.0, first, options.max_momentum});
  corners.push_back({total_steps - 1.0, last, options.max_momentum});
  return corners;
}

/// `value` (a member of Corner) at `position`.
double between(const std::vector<Corner>& corners, AnnealStrategy strategy, double Corner::*value,
               std::int64_t position) {
  const auto now = static_cast<double>(position);
  std::size_t end = 1;
  while (end + 1 < corners.size() && now > corners[end].position) ++end;
  const double length = corners[end].position - corners[end - 1].position;
  const double progress = length > 0 ? std::min(1.0, (now - corners[end - 1].position) / length) : 1.0;
  return anneal(strategy, corners[end - 1].*value, corners[end].*value, progress);
}

void check(std::int64_t total_steps, const OneCycleOptions& options) {
  require_argument(total_steps >= 1, one_cycle_name, value_of("total_steps", total_steps) + ", must be at least 1");
  require_argument(options.pct_start >= 0 && options.pct_start <= (options.three_phase ? 0.5 : 1.0), one_cycle_name,
                   value_of("pct_start", options.pct_start) + ", must be between 0 and 1 (0.5 with three_phase)");
  require_argument(options.div_factor > 0 && options.final_div_factor > 0, one_cycle_name,
                   value_of("div_factor", options.div_factor) + " and " +
                       value_of("final_div_factor", options.final_div_factor) + ", must be positive");
  if (!options.cycle_momentum) return;
  for (const double momentum : {options.base_momentum, options.max_momentum}) {
    require_argument(momentum >= 0 && momentum < 1, one_cycle_name,
                     value_of("a momentum", momentum) + ", must be in [0, 1)");
  }
}

}  // namespace

LrSchedule one_cycle(std::int64_t total_steps, const OneCycleOptions& options) {
  check(total_steps, options);
  const auto corners = corners_of(static_cast<double>(total_steps), options);
  const auto curve = [corners, strategy = options.anneal_strategy](double Corner::*value) {
    return [=](std::int64_t position) { return between(corners, strategy, value, position); };
  };
  if (!options.cycle_momentum) return curve(&Corner::factor);
  return {curve(&Corner::factor), curve(&Corner::momentum)};
}

}  // namespace tutti
