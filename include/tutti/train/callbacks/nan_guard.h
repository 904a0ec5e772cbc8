#pragma once
// Stops a run before a loss or a gradient that is no number reaches the parameters.
#include "tutti/core/error.h"
#include "tutti/train/callback.h"

namespace tutti {

/// Thrown on all ranks: which step, whose loss.
class NonFiniteError : public Error {
 public:
  using Error::Error;
};

/// Looks before every optimizer step. Under fp16 gradients that overflow are the loss scaler's business: there only the
/// loss is looked at.
class NanGuard final : public Callback {
 public:
  void on_optimizer_step_start(TrainerContext& trainer) override;
};

}  // namespace tutti
