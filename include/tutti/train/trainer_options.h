#pragma once
// The length of a Trainer's run, and the intervals of logging, evaluation and saving.
#include <concepts>
#include <cstdint>
#include <optional>
#include <string>

#include "tutti/tracking/tracker.h"

namespace tutti {

/// An interval of optimizer steps, to which a number converts, or of epochs. 0: never.
class TrainerInterval {
 public:
  /// Every `count` optimizer steps.
  constexpr TrainerInterval(std::integral auto count) : count_(static_cast<std::int64_t>(count)) {}
  /// The end of every `count`-th epoch.
  static constexpr TrainerInterval epochs(std::int64_t count) {
    TrainerInterval interval(count);
    interval.in_epochs_ = true;
    return interval;
  }

  /// The number of steps or epochs.
  constexpr std::int64_t count() const { return count_; }
  /// True for an interval of epochs.
  constexpr bool in_epochs() const { return in_epochs_; }
  /// True if the interval is 0.
  constexpr bool is_never() const { return count_ == 0; }
  /// Whether the interval ends with optimizer step `step`, of which the first is 1.
  constexpr bool ends_at_step(std::int64_t step) const { return !is_never() && !in_epochs_ && step % count_ == 0; }
  /// Whether the interval ends with epoch `epoch`, of which the first is 0.
  constexpr bool ends_with_epoch(std::int64_t epoch) const {
    return !is_never() && in_epochs_ && (epoch + 1) % count_ == 0;
  }

 private:
  std::int64_t count_;
  bool in_epochs_ = false;
};

/// Options of a Trainer. Every rank must pass the same.
struct TrainerOptions {
  /// The run ends at max_epochs or max_steps, whichever is first. At least one must be set.
  std::optional<std::int64_t> max_epochs{};
  /// Total number of optimizer steps, including steps before a resume.
  std::optional<std::int64_t> max_steps{};
  /// Clip the total gradient norm to this. Unset: the norm is only measured.
  std::optional<double> max_grad_norm{};

  /// Log metrics every N optimizer steps, and at the end of the run; 0: never.
  std::int64_t log_every = 10;
  /// Evaluate every N optimizer steps, or at the end of every Nth epoch with TrainerInterval::epochs(N), and at the end
  /// of the run; 0: never.
  TrainerInterval evaluate_every = 0;
  /// Save a checkpoint every N optimizer steps or epochs, which requires a project folder. 0: only at the end of the
  /// run, if there is a folder. With RetentionOptions::keep_best and evaluate_every, a multiple of evaluate_every.
  TrainerInterval save_every = 0;

  /// Resume from the newest checkpoint of the project, if there is one. If false, fit() throws UsageError if the
  /// project's folder has checkpoints of another run, and neither overwrites nor removes them.
  bool resume = false;
  /// Write checkpoints from a background thread while training continues.
  bool asynchronous_checkpoints = true;
  /// The evaluation result by which RetentionOptions::keep_best compares checkpoints. A checkpoint has the result of an
  /// evaluation after the same step, or none. With keep_best an evaluation without this result throws UsageError.
  std::string checkpoint_metric = "eval/loss";
  /// The evaluation result that is passed to a ReduceLROnPlateau, after each evaluation of evaluate_every.
  std::string plateau_metric = "eval/loss";
  /// SIGINT and SIGTERM end the run after the current step, with a checkpoint and without an evaluation. A second
  /// SIGINT ends the program at once. Further SIGTERMs have no effect, because schedulers repeat SIGTERM. A signal
  /// after the last step is raised again at the end of fit(), for the handler of the program. The resumed
  /// run makes up for an evaluation that the signal left out: of evaluate_every first, at the end of the run last.
  bool stop_on_signal = true;

  /// Show a progress bar on the standard error of rank 0.
  bool progress_bar = true;
  /// Also write TensorBoard event files, to DIR/tensorboard of the project.
  bool tensorboard = false;
  /// The name of the run in trackers, unless the program has called Accelerator::init_trackers().
  std::string run_name = "run";
  /// Hyperparameters that trackers record at the start, besides those of the program's init_trackers().
  Hyperparameters hyperparameters{};
};

/// The reason why a run ended; Trainer::fit() returns it.
enum class StopReason {
  finished,  ///< max_epochs or max_steps was reached
  callback,  ///< stop() was called, for example by EarlyStopping
  /// A rank received SIGINT or SIGTERM. The run is not complete and can be resumed.
  signal,
};

}  // namespace tutti
