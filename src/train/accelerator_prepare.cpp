// Accelerator: preparing models and optimizers.
#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <sstream>
#include <utility>

#include "core/different_line.h"
#include "sync/check_same_model.h"
#include "sync/model_name.h"
#include "sync/sync_policy.h"
#include "train/accelerator_state.h"
#include "train/jit_layers.h"
#include "train/replicate_optimizer.h"
#include "tutti/core/error.h"
#include "tutti/detail/comm/internal_call.h"
#include "tutti/detail/optim/optimizer_state.h"
#include "tutti/detail/sync/reducer.h"
#include "tutti/sync/distributed_data_parallel.h"

namespace tutti {

namespace {

std::string name_of(ScheduleRule rule) {
  constexpr std::array names{"optimizer_step", "accelerate", "accelerate_micro_batch"};
  return names.at(static_cast<std::size_t>(rule));
}

std::string name_of(BufferSync sync) {
  constexpr std::array names{"broadcast", "mean", "none"};
  return names.at(static_cast<std::size_t>(sync));
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

/// The warning about an optimizer that lists a parameter twice; empty for any other.
std::string warning_of_repeats(const std::vector<NamedParameter>& listed) {
  std::set<const at::TensorImpl*> seen;
  for (const NamedParameter& parameter : listed) {
    if (seen.insert(parameter.tensor.unsafeGetTensorImpl()).second) continue;
    return "prepare(): the optimizer lists the parameter '" + parameter.name +
           "' twice, so each step changes it twice, as in LibTorch. parameters() lists a tensor under each of its "
           "names. To step it once, construct the optimizer from the tensors of named_parameters_of(*model)";
  }
  return "";
}

/// Whether an entry of ignored_parameters names this parameter, or a module above it.
bool is_named_by(const NamedParameter& parameter, const std::string& entry) {
  return parameter.name == entry || parameter.name.starts_with(entry + ".");
}

/// Finds the names of parameters in the models as they are at the call.
std::function<std::string(const at::Tensor&)> name_in(const auto& models) {
  std::vector<std::weak_ptr<torch::nn::Module>> modules;
  for (const auto& model : models) modules.push_back(model.module);
  return [modules](const at::Tensor& tensor) {
    for (const auto& weak : modules) {
      const auto module = weak.lock();
      if (!module) continue;
      for (const auto& item : module->named_parameters()) {
        if (item.value().is_same(tensor)) return "'" + item.key() + "'";
      }
    }
    return std::string();
  };
}

/// The warning about models that are all on another type of device than the batches; empty for any other.
std::string warning_of_place(const auto& models, std::optional<at::Device> of_batches) {
  std::optional<at::Device> place;
  for (const auto& model : models) {
    for (const NamedParameter& parameter : model.parameters) {
      place = parameter.tensor.device();
      if (of_batches && place->type() == of_batches->type()) return "";
    }
  }
  if (!of_batches || !place) return "";
  return "prepare(): the model is on " + place->str() + ", but batches are moved to " + of_batches->str() +
         ", the device of the Accelerator. Call model->to(accelerator.device()) before the optimizer is created";
}

Optimizer optimizer_of_schedule(const std::optional<Optimizer>& previous) {
  if (previous) return *previous;
  throw UsageError("prepare(): a schedule belongs to the optimizer before it, and there is none");
}

}  // namespace

void Accelerator::State::compare_options() {
  if (std::exchange(options_compared, true) || num_processes() == 1) return;
  std::ostringstream text;
  text << std::boolalpha << "gradient_accumulation_steps " << plugin.num_steps << "\nschedule_rule "
       << name_of(plugin.schedule_rule) << "\nsync_with_dataloader " << plugin.sync_with_dataloader
       << "\nsync_each_batch " << plugin.sync_each_batch << "\nmixed_precision " << to_string(mixed_precision)
       << "\nbuffer_sync " << name_of(buffer_sync) << "\nfused_optimizers " << fused_optimizers << '\n';
  for (const std::string& name : ignored_names) text << "ignored_parameters '" << name << "'\n";
  if (scaler) {
    text << "grad_scaler.init_scale " << grad_scaler.init_scale << "\ngrad_scaler.growth_factor "
         << grad_scaler.growth_factor << "\ngrad_scaler.backoff_factor " << grad_scaler.backoff_factor
         << "\ngrad_scaler.growth_interval " << grad_scaler.growth_interval << '\n';
  }
  if (reproducible) {
    text << "reproducible.micro_batches " << reproducible->micro_batches << "\nreproducible.seed " << reproducible->seed
         << "\nreproducible.threads " << reproducible->threads << '\n';
  }
  const auto texts = prepare_communicator.all_gather_object(text.str(), comm::internal_call("options"));
  if (const std::string difference = first_different_line(texts); !difference.empty()) {
    throw MismatchError("different options of the Accelerator: " + difference + ". Pass the same options on all ranks");
  }
}

void Accelerator::prepare_model(std::shared_ptr<torch::nn::Module> module) {
  state_->compare_options();
  if (num_processes() > 1 && state_->reducer_options.check_replicas) refuse_rank_dependent_layers(*module);
  if (state_->reproducible) require_unoptimized_scripts(*module);
  auto parameters = named_parameters_of(*module);
  mark_sparse_tables(*module, parameters);
  const auto known = std::ranges::find(state_->models, module, &State::Model::module);
  if (known != state_->models.end()) {
    // A later parameter may have the address of one that the model no longer has.
    for (const NamedParameter& old : known->parameters) {
      const auto is_old = [&old](const NamedParameter& one) { return one.tensor.is_same(old.tensor); };
      if (std::ranges::none_of(parameters, is_old)) state_->ignored.erase(old.tensor.unsafeGetTensorImpl());
    }
  }
  for (const NamedParameter& parameter : parameters) {
    const auto names_it = [&](const std::string& name) { return is_named_by(parameter, name); };
    if (std::ranges::any_of(state_->ignored_names, names_it)) {
      state_->ignored.insert(parameter.tensor.unsafeGetTensorImpl());
    }
  }
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
  state_->compare_options();
  if (state_->takes_local_steps() || !state_->per_rank.empty())
    throw UsageError("prepare() before the end of LocalSGD: call LocalSGD's finish() first");
  const std::vector<NamedParameter> listed = state_->trained_by(*optimizer);
  std::vector<std::string> names;
  for (const NamedParameter& parameter : listed) names.push_back(parameter.name);
  const std::vector<NamedParameter> parameters = listed_once(listed);
  std::vector<NamedParameter> shared, ignored;
  for (const NamedParameter& parameter : parameters) {
    (state_->is_ignored(parameter.tensor) ? ignored : shared).push_back(parameter);
  }

  const auto is_this = [&optimizer](const Optimizer& one) { return &one.inner() == optimizer.get(); };
  const auto known = std::ranges::find_if(state_->optimizers, is_this);
  const bool again = known != state_->optimizers.end();
  if (const std::string warning = warning_of_repeats(listed); !again && !warning.empty() && is_main_process()) {
    state_->logger.warning(warning);
  }
  if (again && (known->reducer()->in_accumulate() || known->reducer()->has_unused_passes())) {
    throw UsageError("prepare() of an optimizer in the middle of its step: call it after step() and zero_grad()");
  }
  std::vector<std::shared_ptr<Reducer>> old;
  if (again) old.push_back(known->reducer());
  if (again && known->state_->local_reducer) old.push_back(known->state_->local_reducer);
  state_->release(parameters, old);
  // The gradients of the last step are in the memory of the old reducer, which is destroyed.
  if (again) known->zero_grad();
  // Before rank 0 broadcasts its state, so that the state has equal bits on all ranks.
  convert_optimizer_state(*optimizer);
  std::shared_ptr<Reducer> reducer, local_reducer;
  if (!ignored.empty()) {
    local_reducer = std::make_shared<Reducer>(ignored, Communicator(), state_->reducer_options);
    local_reducer->set_local(true);
  }
  if (!shared.empty() || ignored.empty()) {
    reducer = std::make_shared<Reducer>(shared, state_->communicator.duplicate("optimizer"), state_->reducer_options);
    replicate_optimizer(*optimizer, state_->prepare_communicator,
                        [this](const at::Tensor& parameter) { return state_->is_ignored(parameter); });
  }
  // Added only now: a prepare() that threw may be repeated.
  if (local_reducer) state_->add({.reducer = local_reducer, .has_optimizer = true, .ignored = true}, ignored);
  if (reducer) {
    state_->add({.reducer = reducer, .has_optimizer = true}, shared);
  } else {
    reducer = std::exchange(local_reducer, nullptr);
  }
  if (again) reducer->set_steps(known->reducer()->steps());
  state_->logger.debug("prepared an optimizer: " + described(parameters, state_->reducer_options));
  if (again) {
    known->rebind(reducer, local_reducer, std::move(names));
    return *known;
  }
  state_->optimizers.emplace_back(std::move(optimizer), reducer,
                                  OptimizerOptions{.names = std::move(names),
                                                   .scaler = state_->scaler,
                                                   .fused = state_->fused_optimizers,
                                                   .logger = state_->logger,
                                                   .name_of = name_in(state_->models),
                                                   .local_reducer = local_reducer});
  return state_->optimizers.back();
}

Scheduler Accelerator::prepare_schedule(const std::optional<Optimizer>& optimizer, LrSchedule schedule) {
  Scheduler scheduler(optimizer_of_schedule(optimizer), std::move(schedule),
                      {.rule = state_->plugin.schedule_rule, .num_processes = num_processes()});
  state_->schedulers.push_back(
      {.object = std::make_shared<Scheduler>(scheduler), .optimizer = &optimizer_of_schedule(optimizer).inner()});
  return scheduler;
}

ReduceLROnPlateau Accelerator::prepare_plateau(const std::optional<Optimizer>& optimizer,
                                               const PlateauOptions& options) {
  ReduceLROnPlateau scheduler(optimizer_of_schedule(optimizer), options,
                              [group = state_->prepare_communicator](double metric) {
                                const at::Tensor sum = at::scalar_tensor(metric, at::kDouble);
                                group.all_reduce(sum, ReduceOp::sum, comm::internal_call("metric")).wait();
                                return sum.item<double>() / group.size();
                              });
  state_->schedulers.push_back({.object = std::make_shared<ReduceLROnPlateau>(scheduler),
                                .optimizer = &optimizer_of_schedule(optimizer).inner()});
  return scheduler;
}

void Accelerator::complete_models() {
  state_->unprepared_training.reset();
  UnpreparedTrainingDetector::note_prepared();
  for (const std::string& name : state_->ignored_names) {
    const auto has_it = [&name](const State::Model& model) {
      return std::ranges::any_of(model.parameters,
                                 [&name](const auto& parameter) { return is_named_by(parameter, name); });
    };
    if (std::ranges::any_of(state_->models, has_it)) continue;
    throw UsageError("ignored_parameters: no prepared model has a parameter or a module '" + name +
                     "': use the names of named_parameters()");
  }
  const bool any_added = std::ranges::any_of(state_->models, [](const auto& model) { return !model.replicated; });
  if (const std::string warning = warning_of_place(state_->models, state_->device);
      any_added && is_main_process() && !warning.empty()) {
    state_->logger.warning(warning);
  }
  for (State::Model& model : state_->models) {
    std::vector<NamedParameter> free;
    for (const NamedParameter& parameter : model.parameters) {
      if (state_->is_ignored(parameter.tensor)) continue;
      if (!state_->reducer_of.contains(parameter.tensor.unsafeGetTensorImpl())) free.push_back(parameter);
    }
    if (!free.empty()) {
      // No optimizer steps these parameters, so the end of their window is unknown.
      ReducerOptions options = state_->reducer_options;
      if (options.policy == SyncPolicy::automatic) options.policy = SyncPolicy::every_pass;
      state_->add({.reducer = std::make_shared<Reducer>(free, state_->communicator.duplicate("model"), options)}, free);
      state_->logger.debug("prepared parameters without an optimizer: " + described(free, options));
    }
    // The reducers have compared structures before, so the broadcast is called with matching tensors.
    if (std::exchange(model.replicated, true)) continue;
    std::vector<at::Tensor> parameters;
    for (const NamedParameter& parameter : model.parameters) {
      if (!state_->is_ignored(parameter.tensor)) parameters.push_back(parameter.tensor);
    }
    replicate_model(parameters, sync::named_buffers_of(*model.module), state_->buffer_sync == BufferSync::none,
                    state_->prepare_communicator);
  }
  // An optimizer prepared later may train parameters of any model.
  state_->reducers_of_model.clear();
  for (const State::Model& model : state_->models) {
    state_->reducers_of_model[model.module.get()] = state_->reducers_of(model.module->parameters());
  }
  state_->connect_parts();
  state_->watch_buffers();
  state_->compare_parameters_without_optimizer();
}

}  // namespace tutti
