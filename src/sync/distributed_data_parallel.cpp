#include "tutti/sync/distributed_data_parallel.h"

#include <unordered_set>

#include "sync/replicate.h"

namespace tutti {

std::vector<NamedParameter> named_parameters_of(const torch::nn::Module& module) {
  std::vector<NamedParameter> parameters;
  std::unordered_set<const void*> seen;
  for (const auto& item : module.named_parameters()) {
    if (!item.value().defined() || !seen.insert(item.value().unsafeGetTensorImpl()).second) continue;
    parameters.push_back({.name = item.key(), .tensor = item.value()});
  }
  return parameters;
}

void replicate_module(const torch::nn::Module& module, const Communicator& communicator) {
  std::vector<at::Tensor> tensors;
  for (const NamedParameter& parameter : named_parameters_of(module)) tensors.push_back(parameter.tensor);
  for (const at::Tensor& buffer : module.buffers()) {
    if (buffer.defined()) tensors.push_back(buffer);
  }
  sync::replicate(tensors, communicator);
}

DistributedDataParallel::DistributedDataParallel(const torch::nn::Module& module, const Communicator& communicator,
                                                 const ReducerOptions& options)
    // The reducer compares structures, so that replicating cannot meet tensors that do not match.
    : reducer_(std::make_shared<Reducer>(named_parameters_of(module), communicator.duplicate("ddp"), options)) {
  replicate_module(module, communicator);
}

NoSyncScope DistributedDataParallel::no_sync(bool when) {
  if (!when) return NoSyncScope({});
  return NoSyncScope({reducer_});
}

}  // namespace tutti
