#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "optim/run_span.h"
#include "tutti/optim/schedules.h"

namespace tutti {

namespace {

using Options = ScheduleOptions;

std::int64_t total_of(const Options& options, const char* schedule) {
  require_argument(options.total_steps.has_value(), schedule, "needs total_steps");
  return *options.total_steps;
}

LrSchedule make_with_restarts(const Options& o) {
  const double cycles = o.num_cycles.value_or(1);
  require_argument(cycles == std::floor(cycles) && std::isfinite(cycles), "cosine_with_restarts",
                   value_of("num_cycles", cycles) + ", must be a whole number");
  return cosine_with_hard_restarts(o.warmup_steps, total_of(o, "cosine_with_restarts"),
                                   static_cast<std::int64_t>(cycles));
}

LrSchedule make_with_min_lr(const Options& o, bool warms_up_ahead) {
  const char* schedule = warms_up_ahead ? "cosine_warmup_with_min_lr" : "cosine_with_min_lr";
  require_argument(o.min_lr_rate.has_value(), schedule, "needs min_lr_rate");
  const double cycles = o.num_cycles.value_or(0.5);
  if (!warms_up_ahead) return cosine_with_min_lr(o.warmup_steps, total_of(o, schedule), *o.min_lr_rate, cycles);
  return cosine_warmup_with_min_lr(o.warmup_steps, total_of(o, schedule), *o.min_lr_rate, cycles, o.warmup_lr_rate);
}

LrSchedule make_stable(const Options& o) {
  require_argument(o.decay_steps.has_value(), "warmup_stable_decay", "needs decay_steps");
  const WarmupStableDecayOptions defaults;
  return warmup_stable_decay(o.warmup_steps, *o.decay_steps,
                             {.total_steps = o.total_steps,
                              .stable_steps = o.stable_steps,
                              .warmup_type = o.warmup_type.value_or(defaults.warmup_type),
                              .decay_type = o.decay_type.value_or(defaults.decay_type),
                              .min_lr_ratio = o.min_lr_ratio.value_or(defaults.min_lr_ratio),
                              .num_cycles = o.num_cycles.value_or(defaults.num_cycles)});
}

struct Named {
  std::string_view name;
  std::vector<std::string_view> arguments;  // besides warmup_steps and total_steps, which get_scheduler accepts for all
  LrSchedule (*make)(const Options&);
};

std::array<Named, 10> known_schedules() {
  return {{
      {"linear", {}, [](const Options& o) { return linear_with_warmup(o.warmup_steps, total_of(o, "linear")); }},
      {"cosine",
       {"num_cycles"},
       [](const Options& o) {
         return cosine_with_warmup(o.warmup_steps, total_of(o, "cosine"), o.num_cycles.value_or(0.5));
       }},
      {"cosine_with_restarts", {"num_cycles"}, make_with_restarts},
      {"polynomial",
       {"lr_end", "power", "lr_init"},
       [](const Options& o) {
         return polynomial(o.warmup_steps, total_of(o, "polynomial"), o.lr_end.value_or(1e-7), o.power.value_or(1.0),
                           o.lr_init.value_or(1.0));
       }},
      {"constant", {}, [](const Options&) { return constant(); }},
      {"constant_with_warmup", {}, [](const Options& o) { return constant_with_warmup(o.warmup_steps); }},
      {"inverse_sqrt", {"timescale"}, [](const Options& o) { return inverse_sqrt(o.warmup_steps, o.timescale); }},
      {"cosine_with_min_lr",
       {"num_cycles", "min_lr_rate"},
       [](const Options& o) { return make_with_min_lr(o, false); }},
      {"cosine_warmup_with_min_lr",
       {"num_cycles", "min_lr_rate", "warmup_lr_rate"},
       [](const Options& o) { return make_with_min_lr(o, true); }},
      {"warmup_stable_decay",
       {"num_cycles", "stable_steps", "decay_steps", "warmup_type", "decay_type", "min_lr_ratio"},
       make_stable},
  }};
}

std::vector<std::string_view> given_arguments(const Options& o) {
  const std::pair<std::string_view, bool> all[] = {
      {"num_cycles", o.num_cycles.has_value()},
      {"min_lr_rate", o.min_lr_rate.has_value()},
      {"warmup_lr_rate", o.warmup_lr_rate.has_value()},
      {"lr_end", o.lr_end.has_value()},
      {"lr_init", o.lr_init.has_value()},
      {"power", o.power.has_value()},
      {"timescale", o.timescale.has_value()},
      {"stable_steps", o.stable_steps.has_value()},
      {"decay_steps", o.decay_steps.has_value()},
      {"warmup_type", o.warmup_type.has_value()},
      {"decay_type", o.decay_type.has_value()},
      {"min_lr_ratio", o.min_lr_ratio.has_value()},
  };
  std::vector<std::string_view> given;
  for (const auto& [argument, is_set] : all) {
    if (is_set) given.push_back(argument);
  }
  return given;
}

}  // namespace

LrSchedule schedule_by_name(std::string_view name, const ScheduleOptions& options) {
  if (name == "reduce_lr_on_plateau") {
    throw UsageError("reduce_lr_on_plateau follows a metric and is not a curve: use tutti::ReduceLROnPlateau");
  }
  const auto known = known_schedules();
  const auto schedule = std::ranges::find(known, name, &Named::name);
  if (schedule == known.end()) {
    std::string names;
    for (const Named& each : known) names += (names.empty() ? "" : ", ") + std::string(each.name);
    throw UsageError("unknown learning rate schedule '" + std::string(name) + "', choose one of " + names);
  }
  for (const std::string_view argument : given_arguments(options)) {
    if (std::ranges::find(schedule->arguments, argument) == schedule->arguments.end()) {
      throw UsageError("the schedule '" + std::string(name) + "' has no " + std::string(argument) + ": leave it unset");
    }
  }
  return schedule->make(options);
}

}  // namespace tutti
