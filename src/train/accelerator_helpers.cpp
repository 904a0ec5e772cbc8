#include "tutti/train/accelerator_helpers.h"

#include <ATen/Context.h>

#include "train/accelerator_state.h"

namespace tutti {

void set_seed(std::uint64_t seed, bool deterministic) {
  at::manual_seed(seed);
  if (deterministic) at::globalContext().setDeterministicAlgorithms(true, false);
}

const Communicator& Accelerator::internal_communicator() const {
  return state_->communicator;
}

void Accelerator::free_memory() {
  state_->scopes.clear();
  state_->reducers_of_model.clear();
  state_->reducer_of.clear();
  state_->ignored.clear();
  state_->schedulers.clear();
  for (Optimizer& optimizer : state_->optimizers) optimizer.release();  // the program may hold copies
  state_->optimizers.clear();
  // Destroys the communicators of gradients and buffers, so that ranks that wait on them for this rank fail at once.
  state_->buffer_communicator.reset();
  state_->reducers.clear();
  state_->models.clear();
  // The same for the loaders' communicator.
  state_->loader_agreement = {};
  state_->sync_gradients = true;
}

}  // namespace tutti
