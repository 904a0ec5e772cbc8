#include "tutti/train/trainer_options.h"

#include <string>

#include "tracking/printed.h"
#include "tutti/core/error.h"
#include "tutti/train/trainer_context.h"

namespace tutti {

namespace {

std::string text_of(TrainerInterval every) {
  return std::to_string(every.count()) + (every.in_epochs() ? " epochs" : " steps");
}

/// Whether an evaluation precedes each save.
bool saves_after_evaluations(const TrainerOptions& options) {
  const TrainerInterval save = options.save_every;
  const TrainerInterval evaluate = options.evaluate_every;
  if (save.is_never() || evaluate.is_never()) return true;
  return save.in_epochs() == evaluate.in_epochs() && save.count() % evaluate.count() == 0;
}

}  // namespace

void TrainerContext::require_valid_options() const {
  const auto refuse = [](const std::string& why) { throw UsageError("Trainer: " + why); };
  const TrainerInterval save = options_.save_every;
  const TrainerInterval evaluate = options_.evaluate_every;
  if (!options_.max_epochs && !options_.max_steps)
    refuse("set max_epochs or max_steps: without one the run would never end");
  if (options_.max_epochs.value_or(0) < 0 || options_.max_steps.value_or(0) < 0)
    refuse("max_epochs and max_steps must not be negative");
  if (options_.log_every < 0 || evaluate.count() < 0 || save.count() < 0) {
    refuse("log_every, evaluate_every and save_every must be numbers of steps or epochs, or 0 for never");
  }
  if (options_.max_grad_norm && !(*options_.max_grad_norm > 0)) {
    refuse("max_grad_norm is " + printed("%g", *options_.max_grad_norm) +
           ": it must be positive. Leave it unset to measure the norm only");
  }
  const bool wants_folder = !save.is_never() || options_.resume || options_.tensorboard;
  if (wants_folder && accelerator_.project().project_dir.empty()) {
    refuse("save_every, resume and tensorboard need AcceleratorOptions::project.project_dir");
  }
  if (accelerator_.project().retention.keep_best && !saves_after_evaluations(options_)) {
    refuse("save_every is " + text_of(save) + ", and evaluate_every is " + text_of(evaluate) +
           ": keep_best compares checkpoints by an evaluation after the same step. Set save_every to a multiple of "
           "evaluate_every, or leave keep_best off");
  }
  if (schedule_.follows_a_metric() && evaluate.is_never()) {
    refuse("ReduceLROnPlateau follows an evaluation result: set evaluate_every");
  }
}

}  // namespace tutti
