#include "tutti/train/accelerator.h"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <iostream>

#include "core/launchers.h"
#include "train/rank_device.h"
#include "train/registry.h"
#include "tutti/core/environment.h"
#include "tutti/core/error.h"
#include "tutti/detail/comm/internal_call.h"
#include "tutti/detail/sync/reducer.h"
#include "tutti/optim/clip_grad.h"

namespace tutti {

namespace {

GradientAccumulationPlugin plugin_of(const AcceleratorOptions& options) {
  if (options.gradient_accumulation_plugin && options.gradient_accumulation_steps != 1) {
    throw UsageError("set gradient_accumulation_steps or gradient_accumulation_plugin, not both");
  }
  const GradientAccumulationPlugin plugin = options.gradient_accumulation_plugin.value_or(
      GradientAccumulationPlugin{.num_steps = options.gradient_accumulation_steps});
  if (plugin.num_steps < 1) {
    throw UsageError("gradient accumulation over " + std::to_string(plugin.num_steps) +
                     " steps: it must be at least 1");
  }
  return plugin;
}

/// `uneven` is equal on all ranks, so all ranks throw and none waits.
void refuse_uneven(const LoaderPosition& position) {
  if (!position.uneven) return;
  throw UsageError(
      "ranks receive different numbers of batches in this loop, so the last steps would wait for ranks without data: "
      "open join_uneven_inputs() around the loop, or leave even_batches on");
}

Communicator join(const AcceleratorOptions& options) {
  if (options.communicator) return options.communicator->duplicate("accelerator");
  return Communicator::connect(read_environment(),
                               communication_for(options.device, options.communication, &process_variable));
}

}  // namespace

Accelerator::Accelerator(const AcceleratorOptions& options)
    : plugin_(plugin_of(options)),
      mixed_precision_(options.mixed_precision),
      fused_optimizers_(options.fused_optimizers),
      buffer_sync_(options.buffer_sync),
      reproducible_(options.reproducible),
      device_(options.device),
      project_(options.project),
      communicator_(join(options)),
      prepare_communicator_(communicator_.duplicate("prepare")),
      logger_(communicator_.rank()),
      registry_(std::make_unique<Registry>()) {
  if (device_) device_ = device_of_rank(*device_, local_process_index());
  use_device(device());
  logger_.debug(std::to_string(num_processes()) + " ranks on " + std::to_string(communicator_.topology().num_nodes) +
                " nodes, backend " + communicator_.backend_name() + ", device " + device().str() + ", " +
                std::to_string(plugin_.num_steps) + " micro-batches per rank in a step");
  registry_->precision = std::make_shared<PrecisionGuard>(mixed_precision_);
  if (mixed_precision_ == Precision::fp16) registry_->scaler = std::make_shared<GradScaler>(options.grad_scaler);
  reducer_options_ = {.buckets = options.buckets,
                      .policy = options.sync_policy,
                      .check_replicas = options.check_replicas,
                      .gradient_codec = options.gradient_codec,
                      .detect_overflow = mixed_precision_ == Precision::fp16,
                      .reproducible = options.reproducible.has_value(),
                      .before_pass = [guard = registry_->precision, loaders = loaders_] {
                        const LoaderPosition position = loaders->innermost();
                        refuse_uneven(position);
                        guard->check(position.filler);
                      }};
  if (!reproducible_) return;
  const int share = micro_batches_of_rank(*reproducible_, num_processes());
  if (plugin_.num_steps != 1 && plugin_.num_steps != share) {
    throw UsageError("gradient_accumulation_steps is " + std::to_string(plugin_.num_steps) +
                     ", but reproducible asks for " + std::to_string(share) +
                     " micro-batches on each rank: set reproducible only");
  }
  plugin_.num_steps = share;
  at::set_num_threads(reproducible_->threads);
}

Accelerator::~Accelerator() {
  const SyncStats sum = stats();
  if (sum.syncs > 0) {
    logger_.debug("synchronized gradients " + std::to_string(sum.syncs) + " times: " + std::to_string(sum.bytes_sent) +
                  " bytes sent, " + std::to_string(sum.seconds_waiting) + " s waited");
  }
}

AccumulateScope Accelerator::begin_accumulate(const std::vector<const torch::nn::Module*>& modules,
                                              const AccumulateOptions& options) {
  const LoaderPosition position = loaders_->innermost();
  refuse_uneven(position);
  const bool end_of_data = plugin_.sync_with_dataloader && position.last_batch;
  std::vector<AccumulateScope::Member> members;
  for (const auto& reducer : reducers_of(modules)) {
    // Also on a rank whose scope runs no backward pass: all ranks must send the same scale in the sync header.
    if (registry_->scaler) reducer->set_loss_scale(registry_->scaler->scale());
    const std::int64_t scopes = registry_->scopes[reducer.get()] + 1;
    if (reproducible_) seed_micro_batch(*reducer, scopes - 1);
    members.push_back({.reducer = reducer,
                       .step = {.weight = position.filler ? 0 : options.weight,
                                .syncs = end_of_data || scopes % plugin_.num_steps == 0,
                                .sync_each_batch = plugin_.sync_each_batch}});
  }
  AccumulateScope scope(members);
  // Counted after construction, because a scope that throws is not opened.
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

void Accelerator::trigger_sync_of(const torch::nn::Module& module) {
  for (const auto& reducer : reducers_of({&module})) reducer->trigger_sync_in_backward();
}

void Accelerator::synchronize_of(const torch::nn::Module& module) {
  for (const auto& reducer : reducers_of({&module})) reducer->synchronize();
}

void Accelerator::discard_accumulation_of(const torch::nn::Module& module) {
  for (const auto& reducer : reducers_of({&module})) {
    reducer->discard_accumulation();
    registry_->scopes.erase(reducer.get());  // the next scope is a window's first
  }
}

AutocastScope Accelerator::autocast() {
  if (at::GradMode::is_enabled()) registry_->precision->autocast_opened();
  if (mixed_precision_ == Precision::no) return {};
  const bool known = !registry_->models.empty() && !registry_->models.front().parameters.empty();
  const auto device =
      known ? registry_->models.front().parameters.front().tensor.device().type() : c10::DeviceType::CPU;
  return {mixed_precision_, device};
}

void Accelerator::backward(const at::Tensor& loss, const CallSite& where) {
  const CallSiteScope here(where);
  if (num_processes() > 1 && registry_->reducers.empty()) {
    throw UsageError("backward() on " + std::to_string(num_processes()) +
                     " ranks with nothing prepared: each rank would train a model of its own. Pass model and optimizer "
                     "to prepare() before the loop");
  }
  const auto in_scope = [](const auto& synchronized) { return synchronized.reducer->in_accumulate(); };
  const bool accumulating = std::ranges::any_of(registry_->reducers, in_scope);
  double factor = accumulating ? 1.0 : 1.0 / plugin_.num_steps;
  if (on_filler_batch()) factor = 0;
  if (registry_->scaler) {
    const double scale = registry_->scaler->scale();
    factor *= scale;
    for (const auto& synchronized : registry_->reducers) synchronized.reducer->set_loss_scale(scale);
  }
  const PrecisionGuard::ScaledBackward scaled(*registry_->precision);
  try {
    (factor == 1.0 ? loss : loss * factor).backward();
  } catch (...) {
    for (const auto& synchronized : registry_->reducers) synchronized.reducer->on_backward_error();
    throw;
  }
  for (const auto& synchronized : registry_->reducers) synchronized.reducer->add_scope_weight();
}

bool Accelerator::gradients_are_ready(const std::vector<at::Tensor>& parameters) {
  const auto reducers = reducers_of(parameters);
  for (const auto& reducer : reducers) {
    if (!reducer->at_window_end()) return false;
  }
  for (const auto& reducer : reducers) reducer->prepare_step();
  return true;
}

std::optional<double> Accelerator::clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm,
                                                   double norm_type, bool error_if_nonfinite, const CallSite& where) {
  const CallSiteScope here(where);
  if (!gradients_are_ready(parameters)) return std::nullopt;
  return clip_grad_norm(parameters, max_norm, norm_type, error_if_nonfinite);
}

bool Accelerator::clip_grad_value_(const std::vector<at::Tensor>& parameters, double clip_value,
                                   const CallSite& where) {
  const CallSiteScope here(where);
  if (!gradients_are_ready(parameters)) return false;
  clip_grad_value(parameters, clip_value);
  return true;
}

double Accelerator::loss_scale() const {
  return registry_->scaler ? registry_->scaler->scale() : 1.0;
}

bool Accelerator::optimizer_step_was_skipped() const {
  return std::ranges::any_of(registry_->optimizers, &Optimizer::step_was_skipped);
}

std::vector<std::shared_ptr<Reducer>> Accelerator::reducers_of(
    const std::vector<const torch::nn::Module*>& modules) const {
  if (modules.size() == 1) {
    const auto prepared = registry_->reducers_of_model.find(modules.front());
    if (prepared != registry_->reducers_of_model.end()) return prepared->second;
  }
  std::vector<at::Tensor> parameters;
  for (const torch::nn::Module* module : modules) {
    const auto own = module->parameters();
    parameters.insert(parameters.end(), own.begin(), own.end());
  }
  return reducers_of(parameters);
}

std::vector<std::shared_ptr<Reducer>> Accelerator::reducers_of(const std::vector<at::Tensor>& parameters) const {
  std::vector<std::shared_ptr<Reducer>> reducers;
  for (const at::Tensor& parameter : parameters) {
    const auto entry = registry_->reducer_of.find(parameter.unsafeGetTensorImpl());
    if (entry == registry_->reducer_of.end()) {
      throw UsageError("a parameter belongs to no prepared model: pass its model to prepare()");
    }
    if (std::ranges::find(reducers, entry->second) == reducers.end()) reducers.push_back(entry->second);
  }
  return reducers;
}

const Communicator& Accelerator::communicator() const {
  registry_->communicator_exposed = true;
  registry_->unprepared_training.reset();
  return communicator_;
}

void Accelerator::wait_for_everyone(const CallSite& where) const {
  communicator_.barrier({.name = "wait_for_everyone", .where = where}).wait();
}

void Accelerator::print(const std::string& line) const {
  if (is_main_process()) std::cout << line << std::endl;
}

double Accelerator::mean_over_ranks(double value) const {
  const at::Tensor sum = at::scalar_tensor(value, at::kDouble);
  prepare_communicator_.all_reduce(sum, ReduceOp::sum, comm::internal_call("metric")).wait();
  return sum.item<double>() / num_processes();
}

SyncStats Accelerator::stats() const {
  SyncStats total;
  for (const auto& synchronized : registry_->reducers) total += synchronized.reducer->stats();
  return total;
}

}  // namespace tutti
