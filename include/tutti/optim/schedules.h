#pragma once
// The learning rate schedules of Hugging Face's get_scheduler and of torch.optim.lr_scheduler, with their arguments in
// their order and their defaults. Pure.
//
// `warmup_steps` and `total_steps` are positions: total_steps() in schedule_rule.h counts them for a run. A warm-up
// rises linearly from 0 at position 0 to 1 at `warmup_steps`. Past `total_steps` a curve keeps its last value. All
// throw UsageError for arguments out of range, such as a warm-up that is longer than the run.
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "tutti/optim/lr_schedule.h"

namespace tutti {

/// Always 1 (get_constant_schedule).
LrSchedule constant();

/// Warm-up, then 1 (get_constant_schedule_with_warmup).
LrSchedule constant_with_warmup(std::int64_t warmup_steps);

/// Warm-up, then straight down to 0 at `total_steps` (get_linear_schedule_with_warmup).
LrSchedule linear_with_warmup(std::int64_t warmup_steps, std::int64_t total_steps);

/// Warm-up, then `num_cycles` waves of a cosine between 1 and 0: with 0.5 down to 0 at `total_steps`
/// (get_cosine_schedule_with_warmup; Loshchilov and Hutter, "SGDR", ICLR 2017).
LrSchedule cosine_with_warmup(std::int64_t warmup_steps, std::int64_t total_steps, double num_cycles = 0.5);

/// Warm-up, then `num_cycles` times half a cosine from 1 to 0, each starting at 1 again; 0 at `total_steps`
/// (get_cosine_with_hard_restarts_schedule_with_warmup; SGDR's restarts).
LrSchedule cosine_with_hard_restarts(std::int64_t warmup_steps, std::int64_t total_steps, std::int64_t num_cycles = 1);

/// As cosine_with_warmup, between 1 and `min_lr_rate` (get_cosine_with_min_lr_schedule_with_warmup).
LrSchedule cosine_with_min_lr(std::int64_t warmup_steps, std::int64_t total_steps, double min_lr_rate,
                              double num_cycles = 0.5);

/// As cosine_with_min_lr, one position ahead: the warm-up starts at 1 / warmup_steps, or at `warmup_lr_rate`, and
/// reaches 1 at warmup_steps - 1; the cosine reaches its end at total_steps - 1
/// (get_cosine_with_min_lr_schedule_with_warmup_lr_rate).
LrSchedule cosine_warmup_with_min_lr(std::int64_t warmup_steps, std::int64_t total_steps, double min_lr_rate,
                                     double num_cycles = 0.5, std::optional<double> warmup_lr_rate = std::nullopt);

/// Warm-up, then (1 - progress) ^ power from `lr_init` down to `lr_end` at `total_steps`, over lr_init
/// (get_polynomial_decay_schedule_with_warmup, where lr_init is the optimizer's rate; a curve does not see an
/// optimizer, so with the default 1 lr_end is a share of its rate).
LrSchedule polynomial(std::int64_t warmup_steps, std::int64_t total_steps, double lr_end = 1e-7, double power = 1.0,
                      double lr_init = 1.0);

/// Warm-up, then 1 / sqrt(1 + (position - warmup_steps) / timescale); `timescale` is `warmup_steps` by default, or
/// 10000 where that is 0 (get_inverse_sqrt_schedule; Zhai et al., "Scaling Vision Transformers", CVPR 2022).
LrSchedule inverse_sqrt(std::int64_t warmup_steps, std::optional<std::int64_t> timescale = std::nullopt);

/// How warmup_stable_decay() rises and falls.
enum class RampType {
  linear,          ///< a straight line
  cosine,          ///< half a cosine: flat at both ends
  one_minus_sqrt,  ///< get_wsd_schedule's "1-sqrt": steep at the high end
};

/// What warmup_stable_decay() is told besides the lengths of warm-up and decay.
struct WarmupStableDecayOptions {
  /// One of these two decides how long the rate stays at 1. Both may be given when they agree.
  std::optional<std::int64_t> total_steps{};
  /// Positions at 1.
  std::optional<std::int64_t> stable_steps{};
  /// The form of the warm-up.
  RampType warmup_type = RampType::linear;
  /// The form of the decay.
  RampType decay_type = RampType::cosine;
  double min_lr_ratio = 0;  ///< where the warm-up starts and the decay ends
  double num_cycles = 0.5;  ///< of a cosine decay
};

/// A warm-up from min_lr_ratio to 1, 1, a decay back to min_lr_ratio, which stays (get_wsd_schedule; Hu et al.,
/// "MiniCPM", 2024).
LrSchedule warmup_stable_decay(std::int64_t warmup_steps, std::int64_t decay_steps,
                               const WarmupStableDecayOptions& options);

/// gamma ^ floor(position / step_size) (StepLR).
LrSchedule step(std::int64_t step_size, double gamma = 0.1);

/// gamma ^ (how many milestones have been reached) (MultiStepLR). Milestones in any order; one that stands twice counts
/// twice.
LrSchedule multi_step(std::vector<std::int64_t> milestones, double gamma = 0.1);

/// gamma ^ position (ExponentialLR).
LrSchedule exponential(double gamma);

/// How one_cycle() moves between its rates.
enum class AnnealStrategy {
  cos,     ///< half a cosine: flat at both ends
  linear,  ///< a straight line
};

/// OneCycleLR's arguments and defaults.
struct OneCycleOptions {
  double pct_start = 0.3;  ///< the rise's share of the run
  /// The form of rise and fall.
  AnnealStrategy anneal_strategy = AnnealStrategy::cos;
  bool cycle_momentum = true;     ///< move the momentum (the first beta of Adam) against the rate
  double base_momentum = 0.85;    ///< at the highest rate
  double max_momentum = 0.95;     ///< at the lowest
  double div_factor = 25.0;       ///< the first rate is 1 / div_factor
  double final_div_factor = 1e4;  ///< the last rate is 1 / (div_factor * final_div_factor)
  bool three_phase = false;       ///< fall to the first rate as long as the rise took, then on to the last
};

/// Up to 1 and down again: factor 1 is PyTorch's max_lr, so the optimizer's own rate is the peak. The lowest rate
/// stands at position total_steps - 1, the run's last step (OneCycleLR; Smith and Topin, "Super-Convergence", 2018).
LrSchedule one_cycle(std::int64_t total_steps, const OneCycleOptions& options = {});

/// What schedule_by_name() passes on. What is set and not an argument of the named schedule is an error.
struct ScheduleOptions {
  std::int64_t warmup_steps = 0;               ///< positions of the warm-up
  std::optional<std::int64_t> total_steps{};   ///< positions of the run
  std::optional<double> num_cycles{};          ///< waves of a cosine
  std::optional<double> min_lr_rate{};         ///< where a cosine ends
  std::optional<double> warmup_lr_rate{};      ///< where the warm-up of cosine_warmup_with_min_lr begins
  std::optional<double> lr_end{};              ///< polynomial()'s last rate
  std::optional<double> lr_init{};             ///< polynomial()'s first rate
  std::optional<double> power{};               ///< polynomial()'s exponent
  std::optional<std::int64_t> timescale{};     ///< inverse_sqrt()'s
  std::optional<std::int64_t> stable_steps{};  ///< positions at 1, of warmup_stable_decay()
  std::optional<std::int64_t> decay_steps{};   ///< positions of its decay
  std::optional<RampType> warmup_type{};       ///< the form of its warm-up
  std::optional<RampType> decay_type{};        ///< the form of its decay
  std::optional<double> min_lr_ratio{};        ///< where its warm-up begins and its decay ends
};

/// The schedule that get_scheduler has under `name`: linear, cosine, cosine_with_restarts, polynomial, constant,
/// constant_with_warmup, inverse_sqrt, cosine_with_min_lr, cosine_warmup_with_min_lr, warmup_stable_decay. Throws
/// UsageError for another name, naming these; for a missing argument, and for one that the schedule does not have.
LrSchedule schedule_by_name(std::string_view name, const ScheduleOptions& options);

}  // namespace tutti
