#pragma once
// Hooks into the Trainer's loop.
#include <filesystem>
#include <string>

#include "tutti/state/stateful.h"
#include "tutti/tracking/tracker.h"

namespace tutti {

class TrainerContext;

/// A callback overrides the events that it needs. Every rank must have the same callbacks in the same order. Every
/// event but on_evaluate_exit is called on all ranks, so a callback may call collectives. An exception ends the run;
/// if one rank throws, the other ranks throw PeerError. Not thread safe.
///
/// A step is one micro-batch of this rank. An optimizer step ends a window.
class Callback : public Stateful {
 public:
  /// Name of the callback's state in checkpoints: letters, digits, '_' and '-'. Empty: no state.
  virtual std::string name() const { return {}; }
  StateDict state_dict() const override { return {}; }
  void load_state_dict(const StateDict& /*state*/) override {}

  /// Called before the first step. A resumed run has been loaded.
  virtual void on_fit_start(TrainerContext&) {}
  /// Called after the last step. Logging, evaluation and saving for the run's end may follow.
  virtual void on_fit_end(TrainerContext&) {}
  /// Called before an epoch. A resumed run calls it again for the epoch in which it resumes.
  virtual void on_epoch_start(TrainerContext&) {}
  /// Called after all batches of an epoch. Not called if the run ends within the epoch, or by max_steps or stop() with
  /// its last batch.
  virtual void on_epoch_end(TrainerContext&) {}
  /// Called before the forward pass of a micro-batch.
  virtual void on_step_start(TrainerContext&) {}
  /// Called after the micro-batch. If the micro-batch ends a window, called after the optimizer step.
  virtual void on_step_end(TrainerContext&) {}
  /// Called after gradients were synchronized and clipped. metrics() has loss and gradient norms.
  virtual void on_optimizer_step_start(TrainerContext&) {}
  /// Called after the optimizer step. Parameters have changed, unless metrics().step_was_skipped. Gradients are
  /// cleared.
  virtual void on_optimizer_step_end(TrainerContext&) {}
  /// Called before the evaluation function. The model is still in training mode.
  virtual void on_evaluate_start(TrainerContext&) {}
  /// Called after the evaluation. The names in `results` are "eval/...". The model may still hold what another callback
  /// has set for the evaluation, so TrainerContext::save_checkpoint() throws UsageError.
  virtual void on_evaluate_end(TrainerContext&, const Scalars& /*results*/) {}
  /// Called last, after on_evaluate_end of all callbacks, and on ranks whose evaluation or callback throws. A callback
  /// undoes what its on_evaluate_start has done, if that was called. Must not throw, and must not call collectives.
  virtual void on_evaluate_exit(TrainerContext&) {}
  /// Called before a checkpoint is written.
  virtual void on_checkpoint_start(TrainerContext&) {}
  /// Called after a checkpoint was started. An asynchronous save may still be writing.
  virtual void on_checkpoint_end(TrainerContext&, const std::filesystem::path& /*folder*/) {}
  /// Called before values are logged. The callback may add values.
  virtual void on_log_start(TrainerContext&, Scalars& /*scalars*/) {}
  /// Called after the trackers have received `scalars`.
  virtual void on_log_end(TrainerContext&, const Scalars& /*scalars*/) {}
};

}  // namespace tutti
