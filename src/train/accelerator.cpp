#include "tutti/train/accelerator.h"

#include <algorithm>
#include <iostream>
#include <sstream>
#include <unordered_map>
#include <unordered_set>

#include "train/replicate_optimizer.h"
#include "tutti/core/environment.h"
#include "tutti/core/error.h"
#include "tutti/optim/clip_grad.h"
#include "tutti/sync/distributed_data_parallel.h"

namespace tutti {

namespace {

using ParameterKey = const at::TensorImpl*;

GradientAccumulationPlugin plugin_of(const AcceleratorOptions& options) {
  if (options.gradient_accumulation_plugin && options.gradient_accumulation_steps != 1) {
    throw UsageError("set gradient_accumulation_steps or gradient_accumulation_plugin, not both");
  }
  const GradientAccumulationPlugin plugin = options.gradient_accumulation_plugin.value_or(
      GradientAccumulationPlugin{.num_steps = options.gradient_accumulation_steps});
  if (plugin.num_steps < 1) {
    throw UsageError("gradient accumulation over " + std::to_string(plugin.num_steps) + " steps: must be at least 1");
  }
  return plugin;
}

Communicator join(const AcceleratorOptions& options) {
  if (options.communicator) return options.communicator->duplicate("accelerator");
  return Communicator::connect(read_environment(), options.communication);
}

}  // namespace

/// What has been prepared. Every reducer owns the gradients of some parameters, no two the same.
struct Accelerator::Registry {
  struct Model {
    std::shared_ptr<torch::nn::Module> module;
    std::vector<NamedParameter> parameters;
    bool replicated = false;
  };
  struct Synchronized {
    std::shared_ptr<Reducer> reducer;
    bool has_optimizer = false;
  };

  std::vector<Model> models;
  std::vector<Synchronized> reducers;
  std::unordered_map<ParameterKey, std::shared_ptr<Reducer>> reducer_of;
  std::unordered_map<const Reducer*, std::int64_t> scopes;  // since the last window's end

  const std::string* name_of(ParameterKey key) const {
    for (const Model& model : models) {
      for (const NamedParameter& parameter : model.parameters) {
        if (parameter.tensor.unsafeGetTensorImpl() == key) return &parameter.name;
      }
    }
    return nullptr;
  }

  void add(const std::shared_ptr<Reducer>& reducer, const std::vector<NamedParameter>& parameters, bool has_optimizer) {
    reducers.push_back({.reducer = reducer, .has_optimizer = has_optimizer});
    for (const NamedParameter& parameter : parameters) reducer_of[parameter.tensor.unsafeGetTensorImpl()] = reducer;
  }

  /// Forgets the reducers that hold any of `parameters` for a model without an optimizer.
  void release(const std::vector<NamedParameter>& parameters) {
    for (const NamedParameter& parameter : parameters) {
      const auto held = reducer_of.find(parameter.tensor.unsafeGetTensorImpl());
      if (held == reducer_of.end()) continue;
      const auto owner = std::ranges::find(reducers, held->second, &Synchronized::reducer);
      if (owner->has_optimizer) {
        throw UsageError("prepare(): parameter '" + parameter.name + "' belongs to another prepared optimizer already");
      }
      const std::shared_ptr<Reducer> released = held->second;
      std::erase_if(reducer_of, [&released](const auto& entry) { return entry.second == released; });
      scopes.erase(released.get());
      reducers.erase(owner);
    }
  }
};

Accelerator::Accelerator(const AcceleratorOptions& options)
    : plugin_(plugin_of(options)),
      reducer_options_{
          .buckets = options.buckets, .policy = options.sync_policy, .check_replicas = options.check_replicas},
      communicator_(join(options)),
      prepare_channel_(communicator_.duplicate("prepare")),
      logger_(communicator_.rank()),
      registry_(std::make_unique<Registry>()) {}

Accelerator::~Accelerator() = default;

void Accelerator::prepare_model(std::shared_ptr<torch::nn::Module> module) {
  const bool known =
      std::ranges::any_of(registry_->models, [&](const Registry::Model& model) { return model.module == module; });
  if (known) return;
  auto parameters = named_parameters_of(*module);
  registry_->models.push_back({.module = std::move(module), .parameters = std::move(parameters), .replicated = false});
}

std::shared_ptr<Reducer> Accelerator::prepare_optimizer(torch::optim::Optimizer& optimizer) {
  std::vector<NamedParameter> parameters;
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& tensor : group.params()) {
      const std::string* name = registry_->name_of(tensor.unsafeGetTensorImpl());
      if (name == nullptr) {
        std::ostringstream shape;
        shape << tensor.sizes();
        throw UsageError("prepare(): the optimizer holds a parameter of shape " + shape.str() +
                         " that is in no prepared model: prepare its model too");
      }
      parameters.push_back({.name = *name, .tensor = tensor});
    }
  }
  registry_->release(parameters);
  const auto reducer = std::make_shared<Reducer>(parameters, communicator_.duplicate("optimizer"), reducer_options_);
  registry_->add(reducer, parameters, true);
  replicate_optimizer(optimizer, prepare_channel_);
  return reducer;
}

void Accelerator::complete_models() {
  for (Registry::Model& model : registry_->models) {
    std::vector<NamedParameter> free;
    for (const NamedParameter& parameter : model.parameters) {
      if (!registry_->reducer_of.contains(parameter.tensor.unsafeGetTensorImpl())) free.push_back(parameter);
    }
    if (!free.empty()) {
      // No optimizer steps these, so nothing tells where their windows end.
      ReducerOptions options = reducer_options_;
      if (options.policy == SyncPolicy::automatic) options.policy = SyncPolicy::every_pass;
      registry_->add(std::make_shared<Reducer>(free, communicator_.duplicate("model"), options), free, false);
    }
    // After the reducers have compared structures, so that no broadcast meets tensors that do not match.
    if (!std::exchange(model.replicated, true)) replicate_module(*model.module, prepare_channel_);
  }
}

AccumulateScope Accelerator::begin_accumulate(const std::vector<const torch::nn::Module*>& modules,
                                              const AccumulateOptions& options) {
  const bool end_of_data = plugin_.sync_with_dataloader && loaders_->at_last_batch();
  std::vector<AccumulateScope::Member> members;
  for (const auto& reducer : reducers_of(modules)) {
    const std::int64_t scopes = registry_->scopes[reducer.get()] + 1;
    members.push_back({.reducer = reducer,
                       .step = {.weight = options.weight,
                                .syncs = end_of_data || scopes % plugin_.num_steps == 0,
                                .sync_each_batch = plugin_.sync_each_batch}});
  }
  AccumulateScope scope(members);
  // Counted only now: a scope that could not be opened is none.
  sync_gradients_ = true;
  for (const AccumulateScope::Member& member : members) {
    registry_->scopes[member.reducer.get()] = member.step.syncs ? 0 : registry_->scopes[member.reducer.get()] + 1;
    sync_gradients_ = sync_gradients_ && member.step.syncs;
  }
  return scope;
}

NoSyncScope Accelerator::begin_no_sync(const torch::nn::Module& module, bool when) {
  if (!when) return NoSyncScope({});
  return NoSyncScope(reducers_of({&module}));
}

void Accelerator::backward(const at::Tensor& loss) {
  const auto in_scope = [](const auto& synchronized) { return synchronized.reducer->in_accumulate(); };
  const bool accumulating = std::ranges::any_of(registry_->reducers, in_scope);
  try {
    (accumulating || plugin_.num_steps == 1 ? loss : loss / plugin_.num_steps).backward();
  } catch (...) {
    for (const auto& synchronized : registry_->reducers) synchronized.reducer->backward_failed();
    throw;
  }
  for (const auto& synchronized : registry_->reducers) synchronized.reducer->count_backward();
}

std::optional<double> Accelerator::clip(const torch::nn::Module& module, double max_norm, double norm_type) {
  const auto reducers = reducers_of({&module});
  for (const auto& reducer : reducers) {
    if (!reducer->at_window_end()) return std::nullopt;
  }
  for (const auto& reducer : reducers) reducer->prepare_step();
  return clip_grad_norm(module.parameters(), max_norm, norm_type);
}

std::vector<std::shared_ptr<Reducer>> Accelerator::reducers_of(
    const std::vector<const torch::nn::Module*>& modules) const {
  std::vector<std::shared_ptr<Reducer>> reducers;
  for (const torch::nn::Module* module : modules) {
    for (const at::Tensor& parameter : module->parameters()) {
      const auto entry = registry_->reducer_of.find(parameter.unsafeGetTensorImpl());
      if (entry == registry_->reducer_of.end())
        throw UsageError("this model has not been prepared: pass it to prepare()");
      if (std::ranges::find(reducers, entry->second) == reducers.end()) reducers.push_back(entry->second);
    }
  }
  return reducers;
}

void Accelerator::wait_for_everyone() const {
  communicator_.barrier({.name = "wait_for_everyone"}).wait();
}

void Accelerator::print(const std::string& line) const {
  if (is_main_process()) std::cout << line << std::endl;
}

SyncStats Accelerator::stats() const {
  SyncStats total;
  for (const auto& synchronized : registry_->reducers) total += synchronized.reducer->stats();
  return total;
}

}  // namespace tutti
