#include "tutti/train/callbacks/nan_guard.h"

#include <cmath>
#include <string>

#include "tutti/detail/comm/internal_call.h"
#include "tutti/train/trainer_context.h"

namespace tutti {

namespace {

/// Throws on all ranks if a value is not finite. Every rank must call it: `loss` and `grad_norm` are equal on all
/// ranks.
void check(TrainerContext& trainer, std::int64_t step, double loss, double grad_norm, const LateValue& local_loss,
           const char* consequence) {
  if (std::isfinite(loss) && std::isfinite(grad_norm)) return;
  const bool is_bad_here = !std::isfinite(local_loss);
  const auto all =
      trainer.accelerator().communicator().all_gather_object(is_bad_here ? "1" : "", comm::internal_call("NanGuard"));
  std::string ranks;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (!all[rank].empty()) ranks += (ranks.empty() ? "" : ", ") + std::to_string(rank);
  }
  std::string message = "step " + std::to_string(step) + ": ";
  if (ranks.empty()) {
    message += "the loss is finite on every rank, but the gradients' norm is " + std::to_string(grad_norm);
  } else {
    message += "the loss is not finite on rank " + ranks;
  }
  throw NonFiniteError(message + consequence + "Inspect this step's data, lower the learning rate, or clip gradients");
}

}  // namespace

void NanGuard::on_fit_start(TrainerContext& /*trainer*/) {
  unread_.reset();
}

void NanGuard::on_optimizer_step_start(TrainerContext& trainer) {
  const StepMetrics& metrics = trainer.metrics();
  const bool checks_norm = !trainer.has_loss_scaler() && !trainer.has_norm_by_rank();
  const Values values{.step = metrics.global_step,
                      .loss = metrics.loss,
                      .grad_norm = checks_norm ? metrics.grad_norm_pre_clip : LateValue(0),
                      .local_loss = trainer.local_loss()};
  check_unread(trainer);
  // All ranks have losses on accelerators, or none has.
  if (values.loss.is_late()) {
    unread_ = values;
  } else {
    check(trainer, values.step, values.loss, values.grad_norm, values.local_loss, ". The parameters are unchanged. ");
  }
}

void NanGuard::on_evaluate_start(TrainerContext& trainer) {
  check_unread(trainer);
}

void NanGuard::on_checkpoint_start(TrainerContext& trainer) {
  check_unread(trainer);
}

void NanGuard::on_fit_end(TrainerContext& trainer) {
  check_unread(trainer);
}

void NanGuard::check_unread(TrainerContext& trainer) {
  if (!unread_) return;
  const Values values = *unread_;
  unread_.reset();
  // The norm was queued after the loss.
  const double grad_norm = values.grad_norm;
  check(trainer, values.step, values.loss, grad_norm, values.local_loss,
        ". The parameters have taken this step, because an accelerator's values are read one step late: resume from "
        "the last checkpoint. ");
}

}  // namespace tutti
