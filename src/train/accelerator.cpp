#include "tutti/train/accelerator.h"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <utility>

#include "core/launchers.h"
#include "device/devices.h"
#include "train/accelerator_state.h"
#include "train/rank_device.h"
#include "train/reproducible.h"
#include "tutti/core/environment.h"
#include "tutti/core/error.h"
#include "tutti/detail/core/call_site_scope.h"
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

/// Both are equal on all ranks, so all ranks throw and none waits.
void refuse_untrainable(const LoaderPosition& position) {
  if (position.evaluation) {
    throw UsageError(
        "training in a loop over a loader that was made with evaluation = true: make a loader for training without it");
  }
  if (!position.uneven) return;
  throw UsageError(
      "ranks receive different numbers of batches in this loop, so the last steps would wait for ranks without data: "
      "leave even_batches on or, without LocalSGD, open join_uneven_inputs() around the loop");
}

BatchPosition batch_position(const LoaderStack& loops) {
  if (loops.empty()) return {};
  const LoaderPosition position = loops.innermost();
  return {.loader = position.start.loader,
          .epoch = position.start.epoch,
          .batch = position.start.batch + position.batch - 1,
          .may_differ = !loops.is_comparable()};
}

Communicator join(const AcceleratorOptions& options) {
  if (options.communicator) return options.communicator->duplicate("accelerator");
  return Communicator::connect(read_environment(), communication_for(options.device, options.reproducible.has_value(),
                                                                     options.communication, &process_variable));
}

}  // namespace

Accelerator::State::State(const AcceleratorOptions& options)
    : plugin(plugin_of(options)),
      mixed_precision(options.mixed_precision),
      fused_optimizers(options.fused_optimizers),
      grad_scaler(options.grad_scaler),
      buffer_sync(options.buffer_sync),
      ignored_names(options.ignored_parameters),
      reproducible(options.reproducible),
      device(options.device),
      project(options.project),
      communicator(join(options)),
      prepare_communicator(communicator.duplicate("prepare")),
      logger(communicator.rank()),
      precision(std::make_shared<PrecisionGuard>(mixed_precision)) {
  // The program may change its working directory.
  if (!project.project_dir.empty()) project.project_dir = std::filesystem::absolute(project.project_dir);
  removable({}, project.retention);  // throws for invalid options
  if (device) device = devices::device_of_rank(*device, communicator.topology().local_rank);
  use_device(device.value_or(at::kCPU));
  logger.debug(std::to_string(num_processes()) + " ranks on " + std::to_string(communicator.topology().num_nodes) +
               " nodes, backend " + communicator.backend_name() + ", device " + device.value_or(at::kCPU).str() + ", " +
               std::to_string(plugin.num_steps) + " micro-batches per rank in a step");
  if (mixed_precision == Precision::fp16) scaler = std::make_shared<GradScaler>(options.grad_scaler);
  reducer_options = {.buckets = options.buckets,
                     .policy = options.sync_policy,
                     .check_replicas = options.check_replicas,
                     .gradient_codec = options.gradient_codec,
                     .detect_overflow = mixed_precision == Precision::fp16,
                     .reproducible = options.reproducible.has_value(),
                     .before_pass =
                         [guard = precision, loops = loader_stack] {
                           const LoaderPosition position = loops->for_training();
                           refuse_untrainable(position);
                           guard->check(position.filler);
                         },
                     .batch_position = [loops = loader_stack] { return batch_position(*loops); }};
  if (!ignored_names.empty() && (scaler || reproducible)) {
    throw UsageError("ignored_parameters with " + std::string(scaler ? "fp16" : "reproducible") +
                     ": ranks would skip different steps or have different bits. Train in bf16 or without it");
  }
  if (!reproducible) return;
  const int share = micro_batches_of_rank(*reproducible, num_processes());
  if (plugin.num_steps != 1 && plugin.num_steps != share) {
    throw UsageError("gradient_accumulation_steps is " + std::to_string(plugin.num_steps) +
                     ", but reproducible asks for " + std::to_string(share) +
                     " micro-batches on each rank: set reproducible only");
  }
  plugin.num_steps = share;
  at::set_num_threads(reproducible->threads);
}

void Accelerator::State::warn_of_extra_window() {
  if (!is_main_process() || std::exchange(warned_of_extra_window, true)) return;
  logger.warning(
      "accumulate(): a scope on the last batch of a loop ends a window of its own. An earlier scope on this batch was "
      "taken for the last, because earlier batches had fewer scopes, or different numbers of scopes. Open the same "
      "number of scopes on every batch, or see 'Several micro-batches from one batch' in "
      "docs/guides/gradient_accumulation.md");
}

void Accelerator::State::warn_of_open_window(const LoaderPosition& position) {
  if (!is_main_process() || warned_of_open_window) return;
  const auto left_open = [&](const auto& of_reducer) { return of_reducer.second.left_open_by(position, scope_rule()); };
  if (std::ranges::none_of(scopes, left_open)) return;
  warned_of_open_window = true;
  logger.warning(
      "accumulate(): a loop over a loader ended inside a window, because its last batch had no scope, or fewer scopes "
      "than earlier batches. The gradients count in the next window. Open the same number of scopes on every batch, or "
      "call discard_accumulation() after the loop: see 'Several micro-batches from one batch' in "
      "docs/guides/gradient_accumulation.md");
}

void Accelerator::State::warn_of_skipped_steps() {
  if (scaler->scale() >= 1 || grad_scaler.init_scale < 1) return;
  if (!is_main_process() || std::exchange(warned_of_skipped_steps, true)) return;
  logger.warning(
      "fp16: steps were skipped, because gradients were infinite or NaN, until the loss scale fell below 1. Overflow "
      "in "
      "fp16 is not the likely cause: look for NaN in the data and the loss, lower the learning rate or clip gradients, "
      "or train in bf16");
}

Accelerator::Accelerator(const AcceleratorOptions& options) : state_(std::make_unique<State>(options)) {
  state_->loader_stack->after_loops(
      [state = state_.get()](const LoaderPosition& position) { state->warn_of_open_window(position); });
}

Accelerator::~Accelerator() {
  state_->loader_stack->after_loops({});  // loaders may outlive this object
  const SyncStats sum = stats();
  if (sum.syncs > 0) {
    logger().debug("synchronized gradients " + std::to_string(sum.syncs) + " times: " + std::to_string(sum.bytes_sent) +
                   " bytes sent, " + std::to_string(sum.seconds_waiting) + " s waited");
  }
}

AccumulateScope Accelerator::begin_accumulate(const std::vector<detail::ModelRef>& models,
                                              const AccumulateOptions& options) {
  const LoaderPosition position = state_->loader_stack->for_training();
  refuse_untrainable(position);
  const ScopeCounter::Rule rule = state_->scope_rule();
  std::vector<AccumulateScope::Member> members;
  for (const auto& reducer : state_->reducers_of(models)) {
    // Frozen parameters have no gradients. An optimizer steps at the end of windows, also with frozen parameters only.
    if (reducer->parameters().empty() && !state_->has_optimizer(reducer)) continue;
    // Also on a rank whose scope runs no backward pass: all ranks must send the same scale in the sync header.
    if (state_->scaler) reducer->set_loss_scale(state_->scaler->scale());
    const ScopeCounter& counter = state_->scopes[reducer.get()];
    if (state_->reproducible) state_->seed_micro_batch(*reducer, counter.scopes());
    members.push_back({.reducer = reducer,
                       .step = {.weight = position.filler ? 0 : options.weight.value_or(1),
                                .syncs = counter.ends_window(position, rule),
                                .sync_each_batch = state_->plugin.sync_each_batch,
                                .of_split_batch = position.split && !options.weight}});
  }
  AccumulateScope scope(members);
  // Counted after construction, because a scope that throws is not opened.
  state_->sync_gradients = true;
  for (const AccumulateScope::Member& member : members) {
    ScopeCounter& counter = state_->scopes[member.reducer.get()];
    if (counter.ends_too_many(position, rule)) state_->warn_of_extra_window();
    counter.open(position, rule);
    state_->sync_gradients = state_->sync_gradients && member.step.syncs;
  }
  return scope;
}

NoSyncScope Accelerator::no_sync(detail::ModelRef model, bool when) {
  if (!when) return NoSyncScope({});
  return NoSyncScope(state_->reducers_of({model}));
}

void Accelerator::trigger_sync_in_backward(detail::ModelRef model) {
  for (const auto& reducer : state_->reducers_of({model})) reducer->trigger_sync_in_backward();
}

void Accelerator::synchronize(detail::ModelRef model, const CallSite& where) {
  const CallSiteScope here(where);
  for (const auto& reducer : state_->reducers_of({model})) {
    // Also on a rank without a backward pass since the scale has changed.
    if (state_->scaler) reducer->set_loss_scale(state_->scaler->scale());
    reducer->synchronize();
  }
}

void Accelerator::discard_accumulation(detail::ModelRef model) {
  for (const auto& reducer : state_->reducers_of({model})) {
    reducer->discard_accumulation();
    state_->scopes[reducer.get()].restart_window();
  }
}

AutocastScope Accelerator::autocast() {
  if (at::GradMode::is_enabled()) state_->precision->autocast_opened();
  if (state_->mixed_precision == Precision::no) return {};
  return {state_->mixed_precision, state_->device_of_forward()};
}

c10::DeviceType Accelerator::State::device_of_forward() const {
  std::optional<c10::DeviceType> first;
  for (const auto& model : models) {
    for (const NamedParameter& parameter : model.parameters) {
      const c10::Device place = parameter.tensor.device();
      if (devices::is_accelerator(place) || !devices::accelerator_type()) return place.type();
      first = place.type();
    }
  }
  return first.value_or(device.value_or(c10::Device(c10::kCPU)).type());
}

void Accelerator::backward(const at::Tensor& loss, bool retain_graph, const CallSite& where) {
  const CallSiteScope here(where);
  if (num_processes() > 1 && state_->reducers.empty()) {
    throw UsageError("backward() on " + std::to_string(num_processes()) +
                     " ranks with nothing prepared: each rank would train a model of its own. Pass model and optimizer "
                     "to prepare() before the loop");
  }
  const auto in_scope = [](const auto& synchronized) { return synchronized.reducer->in_accumulate(); };
  const bool accumulating = std::ranges::any_of(state_->reducers, in_scope);
  double factor = accumulating ? 1.0 : 1.0 / state_->plugin.num_steps;
  if (state_->loader_stack->for_training().filler) factor = 0;
  if (state_->scaler) {
    state_->warn_of_skipped_steps();
    const double scale = state_->scaler->scale();
    factor *= scale;
    for (const auto& synchronized : state_->reducers) synchronized.reducer->set_loss_scale(scale);
  }
  const PrecisionGuard::ScaledBackward scaled(*state_->precision);
  try {
    (factor == 1.0 ? loss : loss * factor).backward({}, retain_graph);
  } catch (...) {
    for (const auto& synchronized : state_->reducers) synchronized.reducer->on_backward_error();
    throw;
  }
  for (const auto& synchronized : state_->reducers) synchronized.reducer->add_scope_weight();
}

void Accelerator::State::note_clipping(const std::vector<at::Tensor>& parameters, const char* name,
                                       double limit) const {
  for (const auto& reducer : reducers_of(parameters)) reducer->note_clipping(name, limit);
}

bool Accelerator::State::gradients_are_ready(const std::vector<at::Tensor>& parameters) const {
  const auto trained = reducers_of(parameters);
  if (!std::ranges::all_of(trained, &Reducer::at_window_end)) return false;
  for (const auto& reducer : trained) reducer->prepare_step();
  return true;
}

std::optional<LateValue> Accelerator::clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm,
                                                      double norm_type, bool error_if_nonfinite,
                                                      const CallSite& where) {
  const CallSiteScope here(where);
  if (!state_->gradients_are_ready(parameters)) return std::nullopt;
  // The gradients of ignored parameters differ between ranks, and so does their norm.
  std::vector<at::Tensor> shared, ignored;
  for (const at::Tensor& parameter : parameters)
    (state_->is_ignored(parameter) ? ignored : shared).push_back(parameter);
  const LateValue norm = clip_grad_norm(shared, max_norm, norm_type, error_if_nonfinite);
  // Ranks compare limits that acted. If the norm is late, they compare every finite limit.
  if (norm.is_late() ? std::isfinite(max_norm) : max_norm < norm + 1e-6) {
    state_->note_clipping(shared, "max_norm of clip_grad_norm_()", max_norm);
    state_->note_clipping(shared, "norm_type of clip_grad_norm_()", norm_type);
  }
  if (ignored.empty()) return norm;
  const LateValue of_ignored = clip_grad_norm(ignored, max_norm, norm_type, error_if_nonfinite);
  return shared.empty() ? of_ignored : norm;
}

std::optional<LateValue> Accelerator::clip_grad_norm_(detail::ModelRef model, double max_norm, double norm_type,
                                                      bool error_if_nonfinite, const CallSite& where) {
  return clip_grad_norm_(model->parameters(), max_norm, norm_type, error_if_nonfinite, where);
}

bool Accelerator::clip_grad_value_(const std::vector<at::Tensor>& parameters, double clip_value,
                                   const CallSite& where) {
  const CallSiteScope here(where);
  if (!state_->gradients_are_ready(parameters)) return false;
  clip_grad_value(parameters, clip_value);
  state_->note_clipping(parameters, "clip_value of clip_grad_value_()", clip_value);
  return true;
}

bool Accelerator::clip_grad_value_(detail::ModelRef model, double clip_value, const CallSite& where) {
  return clip_grad_value_(model->parameters(), clip_value, where);
}

double Accelerator::loss_scale() const {
  return state_->scaler ? state_->scaler->scale() : 1.0;
}

bool Accelerator::optimizer_step_was_skipped() const {
  return std::ranges::any_of(state_->optimizers, &Optimizer::step_was_skipped);
}

const Communicator& Accelerator::communicator() const {
  state_->communicator_exposed = true;
  state_->unprepared_training.reset();
  return state_->communicator;
}

void Accelerator::wait_for_everyone(const CallSite& where) const {
  state_->communicator.barrier({.name = "wait_for_everyone", .where = where}).wait();
}

void Accelerator::print(const std::string& line) const {
  if (is_main_process()) std::cout << line << std::endl;
}

bool Accelerator::on_filler_batch() const {
  return state_->loader_stack->innermost().filler;
}

bool Accelerator::sync_gradients() const {
  return state_->sync_gradients;
}

int Accelerator::gradient_accumulation_steps() const {
  return state_->plugin.num_steps;
}

int Accelerator::rank() const {
  return state_->rank();
}

int Accelerator::local_process_index() const {
  return state_->communicator.topology().local_rank;
}

int Accelerator::num_processes() const {
  return state_->num_processes();
}

at::Device Accelerator::device() const {
  return state_->device.value_or(at::kCPU);
}

const ProjectConfiguration& Accelerator::project() const {
  return state_->project;
}

const Logger& Accelerator::logger() const {
  return state_->logger;
}

SyncStats Accelerator::stats() const {
  SyncStats total;
  for (const auto& synchronized : state_->reducers) total += synchronized.reducer->stats();
  return total;
}

}  // namespace tutti
