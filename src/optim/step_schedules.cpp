// The schedules with powers of gamma.
#include <algorithm>
#include <cmath>

#include "optim/run_span.h"
#include "tutti/optim/schedules.h"

namespace tutti {

namespace {

void check_gamma(const char* schedule, double gamma) {
  require_argument(gamma > 0 && std::isfinite(gamma), schedule, value_of("gamma", gamma) + ", must be positive");
}

}  // namespace

LrSchedule step(std::int64_t step_size, double gamma) {
  require_argument(step_size >= 1, "step", value_of("step_size", step_size) + ", must be at least 1");
  check_gamma("step", gamma);
  return [=](std::int64_t position) { return std::pow(gamma, static_cast<double>(position / step_size)); };
}

LrSchedule multi_step(std::vector<std::int64_t> milestones, double gamma) {
  for (const std::int64_t milestone : milestones) {
    require_argument(milestone >= 0, "multi_step", value_of("a milestone", milestone) + ", must not be negative");
  }
  check_gamma("multi_step", gamma);
  std::ranges::sort(milestones);
  return [milestones = std::move(milestones), gamma](std::int64_t position) {
    const auto reached = std::ranges::upper_bound(milestones, position) - milestones.begin();
    return std::pow(gamma, static_cast<double>(reached));
  };
}

LrSchedule exponential(double gamma) {
  check_gamma("exponential", gamma);
  return [gamma](std::int64_t position) { return std::pow(gamma, static_cast<double>(position)); };
}

}  // namespace tutti
