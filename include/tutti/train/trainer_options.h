#pragma once
// How long a Trainer runs, and what it does how often.
#include <cstdint>
#include <optional>
#include <string>

#include "tutti/tracking/tracker.h"

namespace tutti {

/// What a Trainer is told. Every rank gives the same.
struct TrainerOptions {
  /// The run ends with the first of the two; at least one is given. Steps are optimizer steps.
  std::optional<std::int64_t> max_epochs{};
  /// Optimizer steps in all, those before a resume included.
  std::optional<std::int64_t> max_steps{};
  /// Clip the norm of all gradients; unset: only measure it.
  std::optional<double> max_grad_norm{};

  /// Every how many optimizer steps metrics go to the trackers; 0: never. Where the run ends they do once more.
  std::int64_t log_every = 10;
  /// Every how many optimizer steps the evaluation function runs; 0: never. Where the run ends it
  /// does once more.
  std::int64_t evaluate_every = 0;
  /// Every how many optimizer steps a checkpoint is saved, which needs a project folder; 0: only where the run
  /// ends, if there is a folder.
  std::int64_t save_every = 0;

  /// Go on from the newest checkpoint of the project, if there is one. Without it fit() throws UsageError where the
  /// project's folder holds checkpoints of another run: nothing of it is overwritten or removed.
  bool resume = false;
  /// Write checkpoints while training goes on.
  bool asynchronous_checkpoints = true;
  /// Which evaluation result a checkpoint is worth, for RetentionOptions::keep_best: "eval/loss".
  std::string checkpoint_metric = "eval/loss";
  /// Which evaluation result a ReduceLROnPlateau follows, each time that evaluate_every comes.
  std::string plateau_metric = "eval/loss";
  /// SIGINT and SIGTERM end the run after the present step, with a checkpoint; a second one ends it at once.
  bool stop_on_signal = true;

  /// Show a line on standard error of rank 0 that tells how far the run is.
  bool progress_bar = true;
  /// Also write TensorBoard's event files, to DIR/tensorboard of the project.
  bool tensorboard = false;
  /// What trackers call the run.
  std::string run_name = "run";
  /// What trackers write down once, at the start.
  Hyperparameters hyperparameters{};
};

/// Why a run ended.
enum class StopReason {
  finished,  ///< max_epochs or max_steps was reached
  callback,  ///< stop() was called
  signal,    ///< SIGINT or SIGTERM came to a rank
};

}  // namespace tutti
