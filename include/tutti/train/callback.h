#pragma once
// What a program adds to the Trainer's loop.
#include <filesystem>
#include <string>

#include "tutti/state/stateful.h"
#include "tutti/tracking/tracker.h"

namespace tutti {

class TrainerContext;

/// A callback overrides what it needs. All ranks have the same callbacks in the same order, and every event comes on
/// all ranks, so that a callback may use collectives. What it throws ends the run; throwing on one rank only is a
/// failure of that rank for the others. One thread.
///
/// A step is one micro-batch of this rank, an optimizer step the last one of a window.
class Callback : public Stateful {
 public:
  /// Under this name its state is saved; empty: it has none. Letters, digits, '_' and '-'.
  virtual std::string name() const { return {}; }
  StateDict state_dict() const override { return {}; }
  void load_state_dict(const StateDict& /*state*/) override {}

  /// Before the first step; a resumed run has been loaded.
  virtual void on_fit_start(TrainerContext&) {}
  /// The last step is done. What the last steps have not logged, evaluated or saved may still follow.
  virtual void on_fit_end(TrainerContext&) {}
  /// Comes again for the epoch in which a resumed run goes on.
  virtual void on_epoch_start(TrainerContext&) {}
  /// All batches of the epoch are done. Not where the run ends within it.
  virtual void on_epoch_end(TrainerContext&) {}
  /// Before the forward pass of a micro-batch.
  virtual void on_step_start(TrainerContext&) {}
  /// After it, and after the optimizer step where it ends a window.
  virtual void on_step_end(TrainerContext&) {}
  /// Gradients are synchronized and clipped; metrics() has loss and gradient norms.
  virtual void on_optimizer_step_start(TrainerContext&) {}
  /// Parameters have changed, unless metrics().step_was_skipped; gradients are cleared.
  virtual void on_optimizer_step_end(TrainerContext&) {}
  /// Before the evaluation function; the model is still in training mode.
  virtual void on_evaluate_start(TrainerContext&) {}
  /// `results` have the names "eval/...".
  virtual void on_evaluate_end(TrainerContext&, const Scalars& /*results*/) {}
  /// Before a checkpoint is written.
  virtual void on_checkpoint_start(TrainerContext&) {}
  /// The checkpoint may still be on its way to the disk.
  virtual void on_checkpoint_end(TrainerContext&, const std::filesystem::path& /*folder*/) {}
  /// May add values to what is logged.
  virtual void on_log_start(TrainerContext&, Scalars& /*scalars*/) {}
  /// What was given to the trackers.
  virtual void on_log_end(TrainerContext&, const Scalars& /*scalars*/) {}
};

}  // namespace tutti
