#pragma once
// What one optimizer step was like. Equal on all ranks unless it says otherwise.
#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace tutti {

/// Made by the Trainer at every optimizer step; see TrainerContext::metrics().
struct StepMetrics {
  std::int64_t global_step = 0;  ///< optimizer steps so far, this one included
  double epoch = 0;              ///< with the part of the present one that has been read
  double loss = 0;               ///< sum of the window's losses over all ranks, divided by their weights
  /// Norm of the synchronized, unscaled gradients.
  double grad_norm_pre_clip = 0;
  /// The same after clipping: at most TrainerOptions::max_grad_norm.
  double grad_norm_post_clip = 0;
  /// Norm of all parameters that are trained; only where the step is logged.
  std::optional<double> weight_norm{};
  double learning_rate = 0;       ///< of the step just taken, first parameter group
  bool step_was_skipped = false;  ///< gradients overflowed under fp16, so parameters are as before
  double samples_per_second = 0;  ///< all ranks together, since the step before
  double tokens_per_second = 0;   ///< 0 unless the trainer was told how to count tokens
  double seconds_waiting = 0;     ///< this rank's, for other ranks' gradients
};

/// Where a rank's time goes.
enum class Stage {
  data,       ///< reading the next batch, or waiting for it
  forward,    ///< forward pass and loss
  backward,   ///< backward pass, without the waiting in it
  waiting,    ///< standing still for other ranks
  optimizer,  ///< clipping, step, schedule
  other,      ///< the rest: logging, callbacks, evaluation, checkpoints
};
/// The names of stages in metrics and reports, in the order of Stage.
inline constexpr std::array<std::string_view, 6> stage_names{"data",    "forward",   "backward",
                                                             "waiting", "optimizer", "other"};
/// Seconds by stage.
using StageSeconds = std::array<double, stage_names.size()>;

}  // namespace tutti
