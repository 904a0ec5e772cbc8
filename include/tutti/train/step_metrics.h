#pragma once
// The metrics of one optimizer step. Values are equal on all ranks unless noted.
#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace tutti {

/// Updated by the Trainer at every optimizer step; see TrainerContext::metrics().
struct StepMetrics {
  std::int64_t global_step = 0;  ///< optimizer steps so far, this one included
  double epoch = 0;              ///< the epoch plus the fraction of it that has been read
  double loss = 0;               ///< sum of the window's losses over all ranks, divided by their weights
  /// Norm of the synchronized, unscaled gradients.
  double grad_norm_pre_clip = 0;
  /// The same after clipping: at most TrainerOptions::max_grad_norm.
  double grad_norm_post_clip = 0;
  /// Norm of all trained parameters; set only in steps that are logged.
  std::optional<double> weight_norm{};
  double learning_rate = 0;       ///< of the step just taken, first parameter group
  bool step_was_skipped = false;  ///< gradients overflowed under fp16, so parameters are unchanged
  double samples_per_second = 0;  ///< of all ranks together, since the previous step
  double tokens_per_second = 0;   ///< 0 unless TrainerFunctions::tokens is set
  double seconds_waiting = 0;     ///< time that this rank waited for other ranks' gradients
};

/// The stages into which a rank's time is divided.
enum class Stage {
  data,       ///< reading the next batch, or waiting for it
  forward,    ///< forward pass and loss
  backward,   ///< backward pass, without waiting
  waiting,    ///< waiting for other ranks
  optimizer,  ///< clipping, step, schedule
  other,      ///< the rest: logging, callbacks, evaluation, checkpoints
};
/// Names of the stages in metrics and reports, in the order of Stage.
inline constexpr std::array<std::string_view, 6> stage_names{"data",    "forward",   "backward",
                                                             "waiting", "optimizer", "other"};
/// Seconds by stage.
using StageSeconds = std::array<double, stage_names.size()>;

}  // namespace tutti
