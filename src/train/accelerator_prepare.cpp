// Accelerator: preparing models and optimizers.
#include <algorithm>
#include <map>
#include <set>
#include <sstream>

#include "sync/model_name.h"
#include "train/accelerator_state.h"
#include "train/model_buffers.h"
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

const Optimizer& optimizer_of_schedule(const std::optional<Optimizer>& previous) {
  if (previous) return *previous;
  throw UsageError("prepare(): a schedule belongs to the optimizer before it, and there is none");
}

}  // namespace

void Accelerator::prepare_model(std::shared_ptr<torch::nn::Module> module) {
  auto parameters = named_parameters_of(*module);
  const auto known = std::ranges::find(state_->models, module, &State::Model::module);
  if (known != state_->models.end()) {
    // The model may have changed since it was prepared.
    for (NamedParameter& parameter : parameters) parameter.model = known->error_name;
    known->parameters = std::move(parameters);
    known->replicated = false;
    return;
  }
  state_->models.push_back({.module = std::move(module), .parameters = std::move(parameters)});
  State::Model& added = state_->models.back();
  for (NamedParameter& parameter : added.parameters) parameter.model = added.error_name;
  if (state_->models.size() == 1) return;
  for (std::size_t i = 0; i < state_->models.size(); ++i) {
    const State::Model& model = state_->models[i];
    *model.error_name = State::numbered("model", i) + " (" + sync::short_name_of(*model.module) + ")";
  }
}

Optimizer Accelerator::prepare_optimizer(std::shared_ptr<torch::optim::Optimizer> optimizer) {
  if (state_->local()) throw UsageError("prepare() while ranks take local steps: call LocalSGD's finish() first");
  const std::vector<NamedParameter> listed = state_->trained_by(*optimizer);
  std::vector<std::string> names;
  for (const NamedParameter& parameter : listed) names.push_back(parameter.name);
  const std::vector<NamedParameter> parameters = listed_once(listed);

  const auto is_this = [&optimizer](const Optimizer& one) { return &one.inner() == optimizer.get(); };
  const auto known = std::ranges::find_if(state_->optimizers, is_this);
  const bool again = known != state_->optimizers.end();
  if (again && !known->reducer()->is_idle()) {
    throw UsageError("prepare() of an optimizer in the middle of its step: call it after step() and zero_grad()");
  }
  state_->release(parameters, again ? known->reducer() : nullptr);
  // The gradients of the last step are in the memory of the old reducer, which is destroyed.
  if (again) known->zero_grad();
  const auto reducer =
      std::make_shared<Reducer>(parameters, state_->communicator.duplicate("optimizer"), state_->reducer_options);
  state_->add(reducer, parameters, true);
  state_->logger.debug("prepared an optimizer: " + described(parameters, state_->reducer_options));
  replicate_optimizer(*optimizer, state_->prepare_communicator);
  if (again) {
    known->rebind(reducer, std::move(names));
    return *known;
  }
  state_->optimizers.emplace_back(std::move(optimizer), reducer,
                                  OptimizerOptions{.names = std::move(names),
                                                   .scaler = state_->scaler,
                                                   .fused = state_->fused_optimizers,
                                                   .logger = state_->logger});
  return state_->optimizers.back();
}

Scheduler Accelerator::prepare_schedule(const std::optional<Optimizer>& optimizer, LrSchedule schedule) {
  Scheduler scheduler(optimizer_of_schedule(optimizer), std::move(schedule),
                      {.rule = state_->plugin.schedule_rule, .num_processes = num_processes()});
  state_->schedulers.push_back({.object = std::make_shared<Scheduler>(scheduler), .optimizer = &optimizer->inner()});
  return scheduler;
}

ReduceLROnPlateau Accelerator::prepare_plateau(const std::optional<Optimizer>& optimizer,
                                               const PlateauOptions& options) {
  ReduceLROnPlateau scheduler(optimizer_of_schedule(optimizer), options,
                              [state = state_.get()](double metric) { return state->mean_over_ranks(metric); });
  state_->schedulers.push_back(
      {.object = std::make_shared<ReduceLROnPlateau>(scheduler), .optimizer = &optimizer->inner()});
  return scheduler;
}

void Accelerator::complete_models() {
  state_->unprepared_training.reset();
  UnpreparedTrainingDetector::note_prepared();
  for (State::Model& model : state_->models) {
    std::vector<NamedParameter> free;
    for (const NamedParameter& parameter : model.parameters) {
      if (!state_->reducer_of.contains(parameter.tensor.unsafeGetTensorImpl())) free.push_back(parameter);
    }
    if (!free.empty()) {
      // No optimizer steps these parameters, so the end of their window is unknown.
      ReducerOptions options = state_->reducer_options;
      if (options.policy == SyncPolicy::automatic) options.policy = SyncPolicy::every_pass;
      state_->add(std::make_shared<Reducer>(free, state_->communicator.duplicate("model"), options), free, false);
      state_->logger.debug("prepared parameters without an optimizer: " + described(free, options));
    }
    // The reducers have compared structures before, so the broadcast is called with matching tensors.
    if (!std::exchange(model.replicated, true)) replicate_module(*model.module, state_->prepare_communicator);
  }
  // An optimizer prepared later may train parameters of any model.
  state_->reducers_of_model.clear();
  for (const State::Model& model : state_->models) {
    state_->reducers_of_model[model.module.get()] = state_->reducers_of(model.module->parameters());
  }
  state_->watch_buffers();
}

}  // namespace tutti
