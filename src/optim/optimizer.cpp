#include "tutti/optim/optimizer.h"

#include <ATen/Functions.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>

#include <cmath>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>

#include "optim/fused_step.h"
#include "optim/step_options.h"
#include "optim/unique_parameters.h"
#include "tutti/core/error.h"
#include "tutti/detail/core/call_site_scope.h"
#include "tutti/detail/optim/optimizer_state.h"
#include "tutti/detail/sync/reducer.h"

namespace tutti {

namespace {

std::vector<std::string> numbers_of(const torch::optim::Optimizer& optimizer) {
  std::vector<std::string> numbers;
  for (const auto& group : optimizer.param_groups()) {
    for (std::size_t i = 0; i < group.params().size(); ++i) numbers.push_back(std::to_string(numbers.size()));
  }
  return numbers;
}

}  // namespace

Optimizer::Optimizer(std::shared_ptr<torch::optim::Optimizer> optimizer, std::shared_ptr<Reducer> reducer,
                     OptimizerOptions options)
    : optimizer_(std::move(optimizer)),
      scaler_(std::move(options.scaler)),
      fused_(options.fused),
      logger_(options.logger),
      state_(std::make_shared<State>(State{.reducer = std::move(reducer),
                                           .local_reducer = std::move(options.local_reducer),
                                           .names = std::move(options.names),
                                           .name_of = std::move(options.name_of)})) {
  if (state_->names.empty()) state_->names = numbers_of(*optimizer_);
  bind();
}

void Optimizer::rebind(std::shared_ptr<Reducer> reducer, std::shared_ptr<Reducer> local_reducer,
                       std::vector<std::string> names) {
  state_->reducer = std::move(reducer);
  state_->local_reducer = std::move(local_reducer);
  state_->names = std::move(names);
  bind();
}

const std::shared_ptr<Reducer>& Optimizer::reducer() const {
  if (state_->reducer) return state_->reducer;
  throw UsageError("this optimizer was released by free_memory(): use the one that prepare() returns for it now");
}

void Optimizer::release() {
  state_->reducer.reset();
  state_->local_reducer.reset();
  state_->after_step = nullptr;
}

void Optimizer::bind() {
  list_parameters();
  state_->has_rates = has_learning_rate(*optimizer_);
  if (state_->reducer) state_->reducer->set_step_options(step_options_of(optimizer_));
}

void Optimizer::list_parameters() {
  std::unordered_set<const at::TensorImpl*> synchronized;
  for (const auto& of : {state_->reducer, state_->local_reducer}) {
    if (!of) continue;
    for (const NamedParameter& parameter : of->parameters())
      synchronized.insert(parameter.tensor.unsafeGetTensorImpl());
  }
  state_->repeats = has_repeated_parameters(*optimizer_);
  state_->listed.clear();
  for (const auto& group : param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      const at::TensorImpl* const key = parameter.unsafeGetTensorImpl();
      state_->listed.push_back({.parameter = key, .synchronized = synchronized.contains(key)});
    }
  }
}

void Optimizer::require_synchronized() {
  std::vector<Listed>& listed = state_->listed;
  std::size_t index = 0;
  std::size_t group_index = 0;
  for (const auto& group : param_groups()) {
    for (std::size_t i = 0; i < group.params().size(); ++i, ++index) {
      const at::Tensor& parameter = group.params()[i];
      const bool is_listed = index < listed.size() && listed[index].parameter == parameter.unsafeGetTensorImpl();
      if (!is_listed) list_parameters();
      if (listed[index].synchronized || !parameter.grad().defined()) continue;
      std::string name = state_->name_of ? state_->name_of(parameter) : std::string();
      if (!name.empty()) name += ", ";
      name += "number " + std::to_string(i) + " of parameter group " + std::to_string(group_index);
      if (!parameter.requires_grad()) {
        throw UsageError("step(): the frozen parameter " + name +
                         ", has a gradient that no rank synchronizes and that the step would use: call zero_grad() of "
                         "the optimizer or the model after freezing");
      }
      throw UsageError("step(): the parameter " + name +
                       ", has a gradient that no reducer synchronizes, so each rank would train it alone: prepare the "
                       "model and this optimizer again after adding or unfreezing parameters");
    }
    ++group_index;
  }
}

void Optimizer::step(const CallSite& where) {
  const CallSiteScope here(where);
  if (!reducer()->at_window_end()) return reducer()->check_left_out_step();
  reducer()->prepare_step();
  if (state_->local_reducer) state_->local_reducer->prepare_step();
  require_synchronized();
  state_->skipped = scaler_ && reducer()->overflowed();
  record_rates();
  if (!state_->skipped) step_parameters();
  at::autocast::clear_cache();  // of converted parameters, in a scope of autocast around several steps
  if (scaler_) scaler_->update(state_->skipped);
  reducer()->on_optimizer_step();
  if (state_->local_reducer) state_->local_reducer->on_optimizer_step();
  if (state_->after_step) state_->after_step();
}

at::Tensor Optimizer::step(const std::function<at::Tensor()>& closure, const CallSite& where) {
  const CallSiteScope here(where);
  if (scaler_) {
    throw UsageError(
        "step(closure) cannot skip a step whose gradients overflow: train in bf16, or without a loss scaler");
  }
  if (state_->local_reducer) {
    throw UsageError(
        "step(closure) searches along all parameters at once, so ignored_parameters would make ranks differ: give them "
        "an optimizer of their own");
  }
  if (reducer()->in_accumulate()) {
    throw UsageError(
        "step(closure) inside accumulate(): the closure runs all backward passes of the step, so "
        "call it outside");
  }
  state_->has_stepped = true;
  record_rates();
  const at::Tensor loss = optimizer_->step([&] {
    at::autocast::clear_cache();  // the search has changed the parameters
    const at::AutoGradMode with_grad(true);
    const at::Tensor mine = closure();
    reducer()->prepare_step();
    require_synchronized();
    const double mean = reducer()->mean_over_ranks(mine.item<double>());
    // The parameters change before the next evaluation, so each evaluation is a window.
    reducer()->on_optimizer_step();
    return at::scalar_tensor(mean, mine.options().requires_grad(false));
  });
  at::autocast::clear_cache();  // after the last evaluation, too
  state_->skipped = false;
  state_->not_fused_reason = "step() was called with a closure";
  if (state_->after_step) state_->after_step();
  return loss;
}

void Optimizer::record_rates() {
  if (state_->has_rates) state_->step_rates = learning_rates_of(*optimizer_);
}

void Optimizer::step_parameters() {
  state_->has_stepped = true;
  std::optional<std::string> refusal;
  if (!fused_) {
    refusal = "fused steps are turned off";
  } else if (state_->repeats) {
    refusal = "a parameter is listed twice, so it is stepped twice, one after the other";
  } else {
    refusal = fused_step(*optimizer_);
  }
  if (refusal) optimizer_->step();
  std::string why = refusal.value_or("");
  if (!why.empty() && why != state_->not_fused_reason) {
    logger_.info("the optimizer runs LibTorch's step instead of a fused one: " + why);
  }
  state_->not_fused_reason = std::move(why);
}

void Optimizer::zero_grad(bool set_to_none) {
  reducer()->warn_before_last_scope("zero_grad()",
                                    "discards the passes of the window so far. Call it inside the scope, where it acts "
                                    "at the window's end; discard_accumulation() discards a window without this "
                                    "warning");
  reducer()->clear(set_to_none);
  if (state_->local_reducer) state_->local_reducer->clear(set_to_none);
  if (!reducer()->at_window_end()) return;
  // Parameters that were frozen when they were prepared may hold gradients of earlier passes.
  std::size_t index = 0;
  for (const auto& group : param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      if (index == state_->listed.size()) return;
      const Listed& listed = state_->listed[index++];
      if (listed.parameter == parameter.unsafeGetTensorImpl() && !listed.synchronized) parameter.mutable_grad().reset();
    }
  }
}

double Optimizer::learning_rate() const {
  return state_->has_rates ? optimizer_->param_groups().front().options().get_lr() : 0;
}

void Optimizer::set_learning_rate(double rate) {
  if (!std::isfinite(rate) || rate < 0) {
    throw UsageError("set_learning_rate: the rate is " + std::to_string(rate) +
                     ": it must be 0 or positive, and finite");
  }
  require_learning_rate(*optimizer_, "set_learning_rate");
  for (torch::optim::OptimizerParamGroup& group : optimizer_->param_groups()) group.options().set_lr(rate);
}

StateDict Optimizer::state_dict() const {
  StateDict state = optimizer_state(*optimizer_, state_->names, state_->has_stepped);
  set_parameter_names(state, state_->names);
  return state;
}

void Optimizer::load_state_dict(const StateDict& state) {
  load_optimizer_state(*optimizer_, state_->names, state);
  state_->has_stepped = false;
}

}  // namespace tutti
