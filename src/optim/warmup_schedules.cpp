// The schedules with a warm-up.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "optim/run_span.h"
#include "tutti/optim/schedules.h"

namespace tutti {

namespace {

/// `num_cycles` cosine waves from 1 at progress 0. Half a wave ends with 0 at progress 1.
double cosine_waves(double progress, double num_cycles) {
  return 0.5 * (1.0 + std::cos(std::numbers::pi * num_cycles * 2.0 * progress));
}

void check_share(const char* schedule, const char* name, double share) {
  require_argument(share >= 0 && share <= 1, schedule, value_of(name, share) + ", must be between 0 and 1");
}

void check_cycles(const char* schedule, double num_cycles) {
  require_argument(num_cycles > 0 && std::isfinite(num_cycles), schedule,
                   value_of("num_cycles", num_cycles) + ", must be positive");
}

}  // namespace

LrSchedule constant() {
  return [](std::int64_t) { return 1.0; };
}

LrSchedule constant_with_warmup(std::int64_t warmup_steps) {
  check_warmup("constant_with_warmup", warmup_steps);
  return [warmup_steps](std::int64_t position) {
    return position < warmup_steps ? warmup_factor(position, warmup_steps) : 1.0;
  };
}

LrSchedule linear_with_warmup(std::int64_t warmup_steps, std::int64_t total_steps) {
  const RunSpan run("linear_with_warmup", warmup_steps, total_steps);
  return [run](std::int64_t position) {
    return run.warming_up(position) ? run.warmup(position) : 1.0 - run.progress(position);
  };
}

LrSchedule cosine_with_warmup(std::int64_t warmup_steps, std::int64_t total_steps, double num_cycles) {
  const RunSpan run("cosine_with_warmup", warmup_steps, total_steps);
  check_cycles("cosine_with_warmup", num_cycles);
  return [run, num_cycles](std::int64_t position) {
    return run.warming_up(position) ? run.warmup(position) : cosine_waves(run.progress(position), num_cycles);
  };
}

LrSchedule cosine_with_hard_restarts(std::int64_t warmup_steps, std::int64_t total_steps, std::int64_t num_cycles) {
  const RunSpan run("cosine_with_hard_restarts", warmup_steps, total_steps);
  require_argument(num_cycles >= 1, "cosine_with_hard_restarts",
                   value_of("num_cycles", num_cycles) + ", must be at least 1");
  return [run, cycles = static_cast<double>(num_cycles)](std::int64_t position) {
    if (run.warming_up(position)) return run.warmup(position);
    const double progress = run.progress(position);
    return progress >= 1.0 ? 0.0 : cosine_waves(std::fmod(cycles * progress, 1.0), 0.5);
  };
}

LrSchedule cosine_with_min_lr(std::int64_t warmup_steps, std::int64_t total_steps, double min_lr_rate,
                              double num_cycles) {
  const RunSpan run("cosine_with_min_lr", warmup_steps, total_steps);
  check_share("cosine_with_min_lr", "min_lr_rate", min_lr_rate);
  check_cycles("cosine_with_min_lr", num_cycles);
  return [=](std::int64_t position) {
    if (run.warming_up(position)) return run.warmup(position);
    return cosine_waves(run.progress(position), num_cycles) * (1.0 - min_lr_rate) + min_lr_rate;
  };
}

LrSchedule cosine_warmup_with_min_lr(std::int64_t warmup_steps, std::int64_t total_steps, double min_lr_rate,
                                     double num_cycles, std::optional<double> warmup_lr_rate) {
  const RunSpan run("cosine_warmup_with_min_lr", warmup_steps, total_steps);
  check_share("cosine_warmup_with_min_lr", "min_lr_rate", min_lr_rate);
  check_cycles("cosine_warmup_with_min_lr", num_cycles);
  if (warmup_lr_rate) check_share("cosine_warmup_with_min_lr", "warmup_lr_rate", *warmup_lr_rate);
  return [=](std::int64_t position) {
    if (run.warming_up(position)) {
      if (!warmup_lr_rate) return run.warmup(position + 1);
      const auto steps = static_cast<double>(std::max<std::int64_t>(1, warmup_steps - 1));
      return *warmup_lr_rate + (1.0 - *warmup_lr_rate) * static_cast<double>(position) / steps;
    }
    return cosine_waves(run.progress(position + 1), num_cycles) * (1.0 - min_lr_rate) + min_lr_rate;
  };
}

LrSchedule polynomial(std::int64_t warmup_steps, std::int64_t total_steps, double lr_end, double power,
                      double lr_init) {
  const RunSpan run("polynomial", warmup_steps, total_steps);
  require_argument(
      lr_end >= 0 && lr_end < lr_init && std::isfinite(lr_init), "polynomial",
      value_of("lr_end", lr_end) + " and " + value_of("lr_init", lr_init) + ", needs 0 <= lr_end < lr_init");
  require_argument(power > 0, "polynomial", value_of("power", power) + ", must be positive");
  return [=](std::int64_t position) {
    if (run.warming_up(position)) return run.warmup(position);
    return ((lr_init - lr_end) * std::pow(1.0 - run.progress(position), power) + lr_end) / lr_init;
  };
}

LrSchedule inverse_sqrt(std::int64_t warmup_steps, std::optional<std::int64_t> timescale) {
  check_warmup("inverse_sqrt", warmup_steps);
  const std::int64_t scale = timescale.value_or(warmup_steps == 0 ? 10'000 : warmup_steps);
  require_argument(scale >= 1, "inverse_sqrt", value_of("timescale", scale) + ", must be at least 1");
  return [warmup_steps, scale](std::int64_t position) {
    if (position < warmup_steps) return warmup_factor(position, warmup_steps);
    return 1.0 / std::sqrt(static_cast<double>(position - warmup_steps + scale) / static_cast<double>(scale));
  };
}

}  // namespace tutti
