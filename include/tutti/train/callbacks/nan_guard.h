#pragma once
// Ends a run before a loss or gradient that is not finite changes the parameters.
#include <cstdint>
#include <optional>

#include "tutti/core/error.h"
#include "tutti/device/late_value.h"
#include "tutti/train/callback.h"

namespace tutti {

/// Thrown on all ranks. The message has the step and the ranks with a loss that is not finite.
class NonFiniteError : public Error {
 public:
  using Error::Error;
};

/// Checks loss and gradient norm before every optimizer step. Under fp16 it checks the loss only, because the loss
/// scaler handles gradients that overflow; also while each rank has its own norm (TrainerContext::has_norm_by_rank).
///
/// If the losses are on an accelerator, it checks them one step late, so that the host does not wait for the step that
/// it has just queued: the parameters have then taken that step. It also checks before evaluations, before checkpoints
/// and at the end of the run, so that no checkpoint holds parameters that are not finite because of such a step.
class NanGuard final : public Callback {
 public:
  void on_fit_start(TrainerContext& trainer) override;
  void on_optimizer_step_start(TrainerContext& trainer) override;
  void on_evaluate_start(TrainerContext& trainer) override;
  void on_checkpoint_start(TrainerContext& trainer) override;
  void on_fit_end(TrainerContext& trainer) override;

 private:
  struct Values {
    std::int64_t step;
    LateValue loss, grad_norm, local_loss;
  };
  void check_unread(TrainerContext& trainer);

  std::optional<Values> unread_;  // of the last step, if they were late
};

}  // namespace tutti
