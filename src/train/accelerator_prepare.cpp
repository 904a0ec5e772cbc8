// Accelerator: preparing models and optimizers.
#include <algorithm>
#include <map>
#include <set>
#include <sstream>

#include "sync/model_name.h"
#include "train/model_buffers.h"
#include "train/registry.h"
#include "train/replicate_optimizer.h"
#include "tutti/core/error.h"
#include "tutti/detail/sync/reducer.h"
#include "tutti/sync/distributed_data_parallel.h"

namespace tutti {

namespace {

std::string name_of(SyncPolicy policy) {
  switch (policy) {
    case SyncPolicy::every_pass:
      return "every_pass";
    case SyncPolicy::manual:
      return "manual";
    case SyncPolicy::automatic:
      return "automatic";
  }
  return "?";
}

std::string described(const std::vector<NamedParameter>& parameters, const ReducerOptions& options) {
  std::size_t bytes = 0, frozen = 0;
  for (const NamedParameter& parameter : parameters) {
    frozen += parameter.tensor.requires_grad() ? 0 : 1;
    bytes += parameter.tensor.requires_grad() ? parameter.tensor.nbytes() : 0;
  }
  return std::to_string(parameters.size()) + " parameters (" + std::to_string(frozen) + " frozen), " +
         std::to_string(bytes) + " bytes of gradients in buckets of at most " +
         std::to_string(options.buckets.bucket_bytes) + ", policy " + name_of(options.policy);
}

/// Removes duplicates: a module registered twice lists its parameters twice.
std::vector<NamedParameter> listed_once(const std::vector<NamedParameter>& parameters) {
  std::vector<NamedParameter> once;
  std::set<const at::TensorImpl*> seen;
  for (const NamedParameter& parameter : parameters) {
    if (seen.insert(parameter.tensor.unsafeGetTensorImpl()).second) once.push_back(parameter);
  }
  return once;
}

}  // namespace

void Accelerator::prepare_model(std::shared_ptr<torch::nn::Module> module) {
  auto parameters = named_parameters_of(*module);
  const auto known = std::ranges::find(registry_->models, module, &Registry::Model::module);
  if (known != registry_->models.end()) {
    // The model may have changed since it was prepared.
    for (NamedParameter& parameter : parameters) parameter.model = known->error_name;
    known->parameters = std::move(parameters);
    known->replicated = false;
    return;
  }
  registry_->models.push_back({.module = std::move(module), .parameters = std::move(parameters)});
  Registry::Model& added = registry_->models.back();
  for (NamedParameter& parameter : added.parameters) parameter.model = added.error_name;
  if (registry_->models.size() == 1) return;
  for (std::size_t i = 0; i < registry_->models.size(); ++i) {
    const Registry::Model& model = registry_->models[i];
    *model.error_name = Registry::numbered("model", i) + " (" + sync::short_name_of(*model.module) + ")";
  }
}

std::vector<NamedParameter> Accelerator::trained_by(const torch::optim::Optimizer& optimizer) const {
  std::vector<NamedParameter> parameters;
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& tensor : group.params()) {
      const NamedParameter* parameter = registry_->find(tensor.unsafeGetTensorImpl());
      if (parameter == nullptr) {
        std::ostringstream shape;
        shape << tensor.sizes();
        throw UsageError("prepare(): the optimizer holds a parameter of shape " + shape.str() +
                         " that is in no prepared model: prepare its model too");
      }
      parameters.push_back(*parameter);
    }
  }
  // Several models may have parameters of the same name. State is saved by name, so names must be unique.
  std::map<std::string, std::set<const at::TensorImpl*>> called;
  for (const NamedParameter& parameter : parameters) {
    called[parameter.name].insert(parameter.tensor.unsafeGetTensorImpl());
  }
  for (NamedParameter& parameter : parameters) {
    if (called.at(parameter.name).size() == 1) continue;
    parameter.name = registry_->model_of(parameter.tensor.unsafeGetTensorImpl()) + "." + parameter.name;
  }
  return parameters;
}

Optimizer Accelerator::prepare_optimizer(std::shared_ptr<torch::optim::Optimizer> optimizer) {
  if (registry_->local()) throw UsageError("prepare() while ranks take local steps: call LocalSGD's finish() first");
  const std::vector<NamedParameter> listed = trained_by(*optimizer);
  std::vector<std::string> names;
  for (const NamedParameter& parameter : listed) names.push_back(parameter.name);
  const std::vector<NamedParameter> parameters = listed_once(listed);

  const auto is_this = [&optimizer](const Optimizer& one) { return &one.inner() == optimizer.get(); };
  const auto known = std::ranges::find_if(registry_->optimizers, is_this);
  const bool again = known != registry_->optimizers.end();
  if (again && !known->reducer()->is_idle()) {
    throw UsageError("prepare() of an optimizer in the middle of its step: call it after step() and zero_grad()");
  }
  registry_->release(parameters, again ? known->reducer() : nullptr);
  // The gradients of the last step are in the memory of the old reducer, which is destroyed.
  if (again) known->zero_grad();
  const auto reducer = std::make_shared<Reducer>(parameters, communicator_.duplicate("optimizer"), reducer_options_);
  registry_->add(reducer, parameters, true);
  logger_.debug("prepared an optimizer: " + described(parameters, reducer_options_));
  replicate_optimizer(*optimizer, prepare_communicator_);
  if (again) {
    known->rebind(reducer, std::move(names));
    return *known;
  }
  registry_->optimizers.emplace_back(
      std::move(optimizer), reducer,
      OptimizerOptions{
          .names = std::move(names), .scaler = registry_->scaler, .fused = fused_optimizers_, .logger = logger_});
  return registry_->optimizers.back();
}

void Accelerator::complete_models() {
  registry_->unprepared_training.reset();
  UnpreparedTrainingDetector::note_prepared();
  for (Registry::Model& model : registry_->models) {
    std::vector<NamedParameter> free;
    for (const NamedParameter& parameter : model.parameters) {
      if (!registry_->reducer_of.contains(parameter.tensor.unsafeGetTensorImpl())) free.push_back(parameter);
    }
    if (!free.empty()) {
      // No optimizer steps these parameters, so the end of their window is unknown.
      ReducerOptions options = reducer_options_;
      if (options.policy == SyncPolicy::automatic) options.policy = SyncPolicy::every_pass;
      registry_->add(std::make_shared<Reducer>(free, communicator_.duplicate("model"), options), free, false);
      logger_.debug("prepared parameters without an optimizer: " + described(free, options));
    }
    // The reducers have compared structures before, so the broadcast is called with matching tensors.
    if (!std::exchange(model.replicated, true)) replicate_module(*model.module, prepare_communicator_);
  }
  // An optimizer prepared later may train parameters of any model.
  registry_->reducers_of_model.clear();
  for (const Registry::Model& model : registry_->models) {
    registry_->reducers_of_model[model.module.get()] = reducers_of(model.module->parameters());
  }
  watch_buffers();
}

void Accelerator::watch_buffers() {
  if (buffer_sync_ == BufferSync::none || num_processes() == 1) return;
  for (Optimizer& optimizer : registry_->optimizers) {
    std::vector<at::Tensor> buffers;
    for (const Registry::Model& model : registry_->models) {
      const auto& reducers = registry_->reducers_of_model[model.module.get()];
      if (std::ranges::find(reducers, optimizer.reducer()) == reducers.end()) continue;
      for (const at::Tensor& buffer : model.module->buffers()) {
        if (buffer.defined()) buffers.push_back(buffer);
      }
    }
    optimizer.state_->after_step = nullptr;
    if (buffers.empty()) continue;
    if (!registry_->buffer_communicator) registry_->buffer_communicator = communicator_.duplicate("buffers");
    optimizer.state_->after_step = [buffers, how = buffer_sync_, communicator = *registry_->buffer_communicator,
                                    reducer = std::weak_ptr(optimizer.reducer())] {
      const auto steps = reducer.lock();
      if (steps && !steps->local()) synchronize_buffers(buffers, how, communicator);
    };
  }
}

}  // namespace tutti
