#include <cmath>
#include <numbers>

#include "optim/run_span.h"
#include "tutti/optim/schedules.h"

namespace tutti {

namespace {

constexpr const char* wsd_name = "warmup_stable_decay";

double rise(RampType type, double progress) {
  switch (type) {
    case RampType::cosine:
      return 0.5 * (1.0 - std::cos(std::numbers::pi * progress));
    case RampType::one_minus_sqrt:
      return 1.0 - std::sqrt(1.0 - progress);
    default:
      return progress;
  }
}

double fall(RampType type, double progress, double num_cycles) {
  switch (type) {
    case RampType::cosine:
      return 0.5 * (1.0 + std::cos(std::numbers::pi * num_cycles * 2.0 * progress));
    case RampType::one_minus_sqrt:
      return 1.0 - std::sqrt(progress);
    default:
      return 1.0 - progress;
  }
}

std::int64_t stable_steps_of(std::int64_t warmup_steps, std::int64_t decay_steps,
                             const WarmupStableDecayOptions& options) {
  require_argument(options.total_steps || options.stable_steps, wsd_name, "needs total_steps or stable_steps");
  if (!options.total_steps) return *options.stable_steps;
  const std::int64_t rest = *options.total_steps - warmup_steps - decay_steps;
  require_argument(options.stable_steps.value_or(rest) == rest, wsd_name,
                   value_of("total_steps", *options.total_steps) + ", which leaves " + std::to_string(rest) +
                       " stable steps, but " + value_of("stable_steps", options.stable_steps.value_or(0)) +
                       ": give one of them");
  require_argument(rest >= 0, wsd_name,
                   value_of("total_steps", *options.total_steps) + ", less than warmup_steps and decay_steps together");
  return rest;
}

}  // namespace

LrSchedule warmup_stable_decay(std::int64_t warmup_steps, std::int64_t decay_steps,
                               const WarmupStableDecayOptions& options) {
  check_warmup(wsd_name, warmup_steps);
  require_argument(decay_steps >= 0, wsd_name, value_of("decay_steps", decay_steps) + ", must not be negative");
  const std::int64_t stable_steps = stable_steps_of(warmup_steps, decay_steps, options);
  require_argument(stable_steps >= 0, wsd_name, value_of("stable_steps", stable_steps) + ", must not be negative");
  const double lowest = options.min_lr_ratio;
  require_argument(lowest >= 0 && lowest <= 1, wsd_name,
                   value_of("min_lr_ratio", lowest) + ", must be between 0 and 1");
  require_argument(options.num_cycles > 0 && std::isfinite(options.num_cycles), wsd_name,
                   value_of("num_cycles", options.num_cycles) + ", must be positive");

  return [=](std::int64_t position) {
    if (position < warmup_steps) {
      return rise(options.warmup_type, warmup_factor(position, warmup_steps)) * (1.0 - lowest) + lowest;
    }
    const std::int64_t decaying = position - warmup_steps - stable_steps;
    if (decaying < 0) return 1.0;
    if (decaying >= decay_steps) return lowest;
    const double progress = static_cast<double>(decaying) / static_cast<double>(decay_steps);
    return fall(options.decay_type, progress, options.num_cycles) * (1.0 - lowest) + lowest;
  };
}

}  // namespace tutti
