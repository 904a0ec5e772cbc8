#pragma once
// The learning rate schedules of Hugging Face's get_scheduler and of torch.optim.lr_scheduler, with the same arguments,
// order and defaults. No I/O.
//
// `warmup_steps` and `total_steps` are positions; total_steps() in lr_schedule.h counts them for a run. A warm-up
// rises linearly from 0 at position 0 to 1 at `warmup_steps`. Past `total_steps` a curve keeps its last value. All
// functions throw UsageError for arguments out of range, such as a warm-up that is longer than the run.
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

/// Warm-up, then linear decay to 0 at `total_steps` (get_linear_schedule_with_warmup).
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

/// Warm-up, then (1 - progress) ^ power from `lr_init` to `lr_end` at `total_steps`, divided by lr_init
/// (get_polynomial_decay_schedule_with_warmup, where lr_init is the optimizer's learning rate). A curve has no access
/// to an optimizer, so with the default lr_init = 1 lr_end is a fraction of its learning rate.
LrSchedule polynomial(std::int64_t warmup_steps, std::int64_t total_steps, double lr_end = 1e-7, double power = 1.0,
                      double lr_init = 1.0);

/// Warm-up, then 1 / sqrt(1 + (position - warmup_steps) / timescale). `timescale` is `warmup_steps` by default, or
/// 10000 if that is 0 (get_inverse_sqrt_schedule; Zhai et al., "Scaling Vision Transformers", CVPR 2022).
LrSchedule inverse_sqrt(std::int64_t warmup_steps, std::optional<std::int64_t> timescale = std::nullopt);

/// The shapes of the warm-up and decay of warmup_stable_decay().
enum class RampType {
  linear,          ///< a straight line
  cosine,          ///< half a cosine: flat at both ends
  one_minus_sqrt,  ///< get_wsd_schedule's "1-sqrt": steep at the high end
};

/// Options of warmup_stable_decay().
struct WarmupStableDecayOptions {
  /// Positions of the run. total_steps or stable_steps must be set; both may be set if they agree.
  std::optional<std::int64_t> total_steps{};
  /// Positions at 1.
  std::optional<std::int64_t> stable_steps{};
  /// The shape of the warm-up.
  RampType warmup_type = RampType::linear;
  /// The shape of the decay.
  RampType decay_type = RampType::cosine;
  double min_lr_ratio = 0;  ///< first value of the warm-up and last value of the decay
  double num_cycles = 0.5;  ///< of a cosine decay
};

/// A warm-up from min_lr_ratio to 1, a constant phase at 1, and a decay to min_lr_ratio, which stays
/// (get_wsd_schedule; Hu et al., "MiniCPM", 2024).
LrSchedule warmup_stable_decay(std::int64_t warmup_steps, std::int64_t decay_steps,
                               const WarmupStableDecayOptions& options);

/// gamma ^ floor(position / step_size) (StepLR).
LrSchedule step(std::int64_t step_size, double gamma = 0.1);

/// gamma ^ (number of milestones reached) (MultiStepLR). Milestones may be in any order; a repeated one counts twice.
LrSchedule multi_step(std::vector<std::int64_t> milestones, double gamma = 0.1);

/// gamma ^ position (ExponentialLR).
LrSchedule exponential(double gamma);

/// The shapes of the rise and fall of one_cycle().
enum class AnnealStrategy {
  cos,     ///< half a cosine: flat at both ends
  linear,  ///< a straight line
};

/// OneCycleLR's arguments and defaults.
struct OneCycleOptions {
  double pct_start = 0.3;  ///< fraction of the run in which the rate rises
  /// The shape of the rise and fall.
  AnnealStrategy anneal_strategy = AnnealStrategy::cos;
  bool cycle_momentum = true;     ///< cycle the momentum (the first beta of Adam) inversely to the rate
  double base_momentum = 0.85;    ///< momentum at the highest rate
  double max_momentum = 0.95;     ///< momentum at the lowest rate
  double div_factor = 25.0;       ///< the first rate is 1 / div_factor
  double final_div_factor = 1e4;  ///< the last rate is 1 / (div_factor * final_div_factor)
  bool three_phase = false;       ///< fall to the first rate in as many steps as the rise, then to the last rate
};

/// Rises to 1 and falls again. Factor 1 is PyTorch's max_lr, so the optimizer's learning rate is the peak. The lowest
/// rate is at position total_steps - 1, the run's last step (OneCycleLR; Smith and Topin, "Super-Convergence", 2018).
LrSchedule one_cycle(std::int64_t total_steps, const OneCycleOptions& options = {});

/// Arguments of schedule_by_name(). Setting one that the named schedule does not have is an error, except for the first
/// two, which Hugging Face's trainer passes to all: constant has no warm-up.
struct ScheduleOptions {
  std::int64_t warmup_steps = 0;               ///< positions of the warm-up
  std::optional<std::int64_t> total_steps{};   ///< positions of the run
  std::optional<double> num_cycles{};          ///< waves of a cosine
  std::optional<double> min_lr_rate{};         ///< last value of a cosine
  std::optional<double> warmup_lr_rate{};      ///< first value of the warm-up of cosine_warmup_with_min_lr
  std::optional<double> lr_end{};              ///< polynomial()'s last rate
  std::optional<double> lr_init{};             ///< polynomial()'s first rate
  std::optional<double> power{};               ///< polynomial()'s exponent
  std::optional<std::int64_t> timescale{};     ///< inverse_sqrt()'s timescale
  std::optional<std::int64_t> stable_steps{};  ///< positions at 1 of warmup_stable_decay()
  std::optional<std::int64_t> decay_steps{};   ///< positions of its decay
  std::optional<RampType> warmup_type{};       ///< the shape of its warm-up
  std::optional<RampType> decay_type{};        ///< the shape of its decay
  std::optional<double> min_lr_ratio{};        ///< first value of its warm-up and last value of its decay
};

/// The schedule that get_scheduler has under `name`: linear, cosine, cosine_with_restarts, polynomial, constant,
/// constant_with_warmup, inverse_sqrt, cosine_with_min_lr, cosine_warmup_with_min_lr or warmup_stable_decay. Throws
/// UsageError for another name (the message lists these), a missing argument, or one that the schedule does not have.
LrSchedule schedule_by_name(std::string_view name, const ScheduleOptions& options);

}  // namespace tutti
