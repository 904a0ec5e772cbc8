#include "tutti/train/callbacks/nan_guard.h"

#include <cmath>
#include <string>

#include "tutti/detail/comm/internal_call.h"
#include "tutti/train/trainer_context.h"

namespace tutti {

void NanGuard::on_optimizer_step_start(TrainerContext& trainer) {
  const StepMetrics& metrics = trainer.metrics();
  const bool scaled = trainer.accelerator().loss_scale() != 1;
  if (std::isfinite(metrics.loss) && (scaled || std::isfinite(metrics.grad_norm_pre_clip))) return;
  // Every rank reaches this collective, because both numbers are equal on all ranks.
  const bool is_bad_here = !std::isfinite(trainer.local_loss());
  const auto all =
      trainer.accelerator().communicator().all_gather_object(is_bad_here ? "1" : "", comm::internal_call("NanGuard"));
  std::string ranks;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (!all[rank].empty()) ranks += (ranks.empty() ? "" : ", ") + std::to_string(rank);
  }
  std::string message = "step " + std::to_string(metrics.global_step) + ": ";
  if (ranks.empty()) {
    message +=
        "the loss is finite on every rank, but the gradients' norm is " + std::to_string(metrics.grad_norm_pre_clip);
  } else {
    message += "the loss is not finite on rank " + ranks;
  }
  throw NonFiniteError(message +
                       ". The parameters are unchanged. Inspect this step's data, lower the learning rate, or clip "
                       "gradients");
}

}  // namespace tutti
