#include "tutti/train/accelerator_helpers.h"

#include <ATen/Context.h>

#include "train/registry.h"

namespace tutti {

void set_seed(std::uint64_t seed, bool deterministic) {
  at::manual_seed(seed);
  if (deterministic) at::globalContext().setDeterministicAlgorithms(true, false);
}

std::optional<LoaderPosition> Accelerator::loop_position() const {
  if (loaders_->empty()) return std::nullopt;
  return loaders_->innermost();
}

void Accelerator::free_memory() {
  registry_->scopes.clear();
  registry_->reducers_of_model.clear();
  registry_->reducer_of.clear();
  registry_->schedulers.clear();
  registry_->optimizers.clear();
  registry_->reducers.clear();
  registry_->models.clear();
  registry_->loaders.clear();
  // Destroys the loaders' communicator, so that ranks that wait on it for this rank fail at once.
  loader_agreement_ = {};
  sync_gradients_ = true;
}

}  // namespace tutti
