#include "tutti/train/callbacks/ema.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_lerp.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "device/devices.h"
#include "device/foreach.h"
#include "tutti/core/error.h"
#include "tutti/sync/distributed_data_parallel.h"
#include "tutti/train/trainer_context.h"

namespace tutti {

namespace {

/// Small changes would be rounded away in the half precisions.
at::ScalarType dtype_of_average(const at::Tensor& parameter) {
  return at::isReducedFloatingType(parameter.scalar_type()) ? at::kFloat : parameter.scalar_type();
}

at::Tensor copied(const NamedParameter& parameter) {
  const at::Tensor values = parameter.tensor.detach();
  return values.to(dtype_of_average(values), /*non_blocking=*/false, /*copy=*/true);
}

std::map<std::string, at::Tensor> copy_parameters(const torch::nn::Module& model) {
  std::map<std::string, at::Tensor> copies;
  for (const NamedParameter& parameter : named_parameters_of(model)) copies.emplace(parameter.name, copied(parameter));
  return copies;
}

}  // namespace

Ema::Ema(EmaOptions options) : options_(options) {
  if (!(options_.decay > 0 && options_.decay < 1)) throw UsageError("Ema: decay must be between 0 and 1");
}

StateDict Ema::state_dict() const {
  StateDict state;
  state.set("steps", steps_);
  for (const auto& [name, tensor] : average_) state.set("average." + name, tensor);
  return state;
}

void Ema::load_state_dict(const StateDict& state) {
  const auto steps = state.get<std::int64_t>("steps");
  std::map<std::string, at::Tensor> average;
  const StateDict saved = state.part("average");
  for (const auto& [name, value] : saved.values()) {
    const at::Tensor& tensor = saved.get<at::Tensor>(name);
    const auto known = average_.find(name);
    const at::Device device = known == average_.end() ? tensor.device() : known->second.device();
    average.emplace(name, tensor.to(device, /*non_blocking=*/false, /*copy=*/true));
  }
  steps_ = steps;
  average_ = std::move(average);
}

void Ema::on_fit_start(TrainerContext& trainer) {
  const at::NoGradGuard no_grad;
  auto fresh = copy_parameters(trainer.model());
  for (auto& [name, tensor] : fresh) {
    const auto saved = average_.find(name);
    if (saved == average_.end()) continue;
    if (saved->second.sizes() != tensor.sizes()) {
      throw CheckpointError("Ema: the saved average of '" + name + "' has another shape than the parameter");
    }
    tensor.copy_(saved->second);
  }
  average_ = std::move(fresh);
}

void Ema::on_optimizer_step_end(TrainerContext& trainer) {
  if (trainer.metrics().step_was_skipped) return;
  const at::NoGradGuard no_grad;
  ++steps_;
  const double warm = options_.warmup ? static_cast<double>(1 + steps_) / static_cast<double>(10 + steps_) : 1.0;
  const double weight = 1 - std::min(options_.decay, warm);
  std::vector<at::Tensor> averages, values;  // on accelerators
  for (const NamedParameter& parameter : named_parameters_of(trainer.model())) {
    const auto known = average_.find(parameter.name);
    if (known == average_.end()) {  // added during fit()
      average_.emplace(parameter.name, copied(parameter));
      continue;
    }
    at::Tensor& average = known->second;
    if (!average.is_floating_point() && !average.is_complex()) {
      average.copy_(parameter.tensor);
    } else if (devices::is_accelerator(average.device())) {
      averages.push_back(average);
      values.push_back(parameter.tensor.to(average.scalar_type()));
    } else {
      average.lerp_(parameter.tensor.to(average.scalar_type()), weight);
    }
  }
  for (const auto& group : devices::by_device_and_dtype(averages)) {
    at::_foreach_lerp_(devices::select(averages, group), devices::select(values, group), weight);
  }
}

void Ema::on_evaluate_start(TrainerContext& trainer) {
  if (!options_.evaluate_average) return;
  swap(trainer.model());
  evaluates_ = true;
}

void Ema::on_evaluate_exit(TrainerContext& trainer) {
  if (std::exchange(evaluates_, false)) swap(trainer.model());
}

// The second call puts the average back as it was, not as the parameter has rounded it.
void Ema::swap_rounded(const NamedParameter& parameter, at::Tensor& average) {
  const auto exact = exact_.extract(parameter.name);
  const at::Tensor before = parameter.tensor.to(average.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
  if (exact.empty()) exact_.emplace(parameter.name, average);
  parameter.tensor.copy_(average);
  average = exact.empty() ? before : exact.mapped();
}

void Ema::swap(torch::nn::Module& model) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> averages, values;  // on accelerators
  for (const NamedParameter& parameter : named_parameters_of(model)) {
    const auto average = average_.find(parameter.name);
    if (average == average_.end()) continue;
    if (average->second.scalar_type() != parameter.tensor.scalar_type()) {
      swap_rounded(parameter, average->second);
      continue;
    }
    if (devices::is_accelerator(parameter.tensor.device())) {
      averages.push_back(average->second);
      values.push_back(parameter.tensor);
      continue;
    }
    const at::Tensor before = parameter.tensor.clone();
    parameter.tensor.copy_(average->second);
    average->second.copy_(before);
  }
  devices::swap_values(values, averages);
}

}  // namespace tutti
