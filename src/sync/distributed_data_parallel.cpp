#include "tutti/sync/distributed_data_parallel.h"

#include <torch/nn/modules/embedding.h>

#include <unordered_set>

#include "sync/check_same_model.h"
#include "sync/model_name.h"
#include "sync/rank_dependent_layers.h"
#include "sync/replicate.h"

namespace tutti {

namespace {

/// The weights of embeddings that were made with sparse(true).
std::unordered_set<const void*> sparse_tables_of(const torch::nn::Module& module) {
  std::unordered_set<const void*> tables;
  for (const auto& part : module.modules()) {
    if (const auto* embedding = part->as<torch::nn::Embedding>(); embedding && embedding->options.sparse()) {
      tables.insert(embedding->weight.unsafeGetTensorImpl());
    } else if (const auto* bag = part->as<torch::nn::EmbeddingBag>(); bag && bag->options.sparse()) {
      tables.insert(bag->weight.unsafeGetTensorImpl());
    }
  }
  return tables;
}

/// The parameters to synchronize. Adds the model's name, because other models may have parameters of the same names.
std::vector<NamedParameter> checked_parameters(const torch::nn::Module& module, const Communicator& communicator,
                                               const ReducerOptions& options) {
  if (communicator.size() > 1 && options.check_replicas) sync::refuse_rank_dependent_layers(module);
  auto parameters = named_parameters_of(module);
  const auto model = std::make_shared<const std::string>(sync::short_name_of(module));
  for (NamedParameter& parameter : parameters) parameter.model = model;
  return parameters;
}

}  // namespace

std::vector<NamedParameter> named_parameters_of(const torch::nn::Module& module) {
  std::vector<NamedParameter> parameters;
  std::unordered_set<const void*> seen;
  const auto sparse_tables = sparse_tables_of(module);
  for (const auto& item : module.named_parameters()) {
    if (!item.value().defined() || !seen.insert(item.value().unsafeGetTensorImpl()).second) continue;
    const bool sparse = sparse_tables.contains(item.value().unsafeGetTensorImpl());
    parameters.push_back({.name = item.key(), .tensor = item.value(), .sparse = sparse});
  }
  return parameters;
}

void replicate_tensors(const std::vector<at::Tensor>& tensors, const Communicator& communicator) {
  sync::replicate(tensors, communicator);
}

void replicate_model(const std::vector<at::Tensor>& parameters, const std::vector<NamedParameter>& buffers,
                     bool buffers_may_differ, const Communicator& communicator) {
  if (communicator.size() == 1) return;
  std::vector<at::Tensor> tensors = parameters;
  const auto equal_buffers = sync::check_same_buffers(buffers, buffers_may_differ, communicator);
  tensors.insert(tensors.end(), equal_buffers.begin(), equal_buffers.end());
  sync::replicate(tensors, communicator);
}

void replicate_module(const torch::nn::Module& module, const Communicator& communicator) {
  std::vector<at::Tensor> parameters;
  for (const NamedParameter& parameter : named_parameters_of(module)) parameters.push_back(parameter.tensor);
  replicate_model(parameters, sync::named_buffers_of(module), /*buffers_may_differ=*/false, communicator);
}

DistributedDataParallel::DistributedDataParallel(const torch::nn::Module& module, const Communicator& communicator,
                                                 const ReducerOptions& options)
    // The reducer is constructed first: it compares the structures, so the tensors match in the broadcast.
    : reducer_(std::make_shared<Reducer>(checked_parameters(module, communicator, options),
                                         communicator.duplicate("ddp"), options)) {
  replicate_module(module, communicator);
}

NoSyncScope DistributedDataParallel::no_sync(bool when) {
  if (!when) return NoSyncScope({});
  return NoSyncScope({reducer_});
}

}  // namespace tutti
