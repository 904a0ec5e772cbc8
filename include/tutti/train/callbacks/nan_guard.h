#pragma once
// Ends a run before a loss or gradient that is not finite changes the parameters.
#include "tutti/core/error.h"
#include "tutti/train/callback.h"

namespace tutti {

/// Thrown on all ranks. The message has the step and the ranks with a loss that is not finite.
class NonFiniteError : public Error {
 public:
  using Error::Error;
};

/// Checks loss and gradient norm before every optimizer step. Under fp16 it checks the loss only, because the loss
/// scaler handles gradients that overflow.
class NanGuard final : public Callback {
 public:
  void on_optimizer_step_start(TrainerContext& trainer) override;
};

}  // namespace tutti
