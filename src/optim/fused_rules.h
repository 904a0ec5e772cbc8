#pragma once
// Converts each optimizer's parameters, state and options to the arguments of its fused kernel.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/_fused_adagrad.h>
#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros_like.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <cstdint>
#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace tutti::fused {

using Tensors = std::vector<at::Tensor>;

/// The state of `parameter`, or null.
template <typename State>
State* state_of(torch::optim::Optimizer& optimizer, const at::Tensor& parameter) {
  const auto entry = optimizer.state().find(parameter.unsafeGetTensorImpl());
  return entry == optimizer.state().end() ? nullptr : dynamic_cast<State*>(entry->second.get());
}

template <typename State>
State& add_state(torch::optim::Optimizer& optimizer, const at::Tensor& parameter, State state) {
  auto& entry = optimizer.state()[parameter.unsafeGetTensorImpl()];
  entry = std::make_unique<State>(std::move(state));
  return static_cast<State&>(*entry);
}

/// The kernels take the number of steps of a parameter as a tensor that they only read: an integer on the CPU, a float
/// on an accelerator's own memory. Most parameters share one.
class StepTensors {
 public:
  explicit StepTensors(at::Device device)
      : options_(at::TensorOptions(device.is_cpu() ? at::kLong : at::kFloat).device(device)) {}

  at::Tensor of(std::int64_t step) {
    if (!last_.defined() || step != number_) last_ = at::full({}, number_ = step, options_);
    return last_;
  }

 private:
  at::TensorOptions options_;
  std::int64_t number_ = 0;
  at::Tensor last_;
};

/// The kernels do not increase the version counters of the tensors that they write.
inline void bump_versions(const Tensors& tensors) {
  for (const at::Tensor& tensor : tensors) tensor.unsafeGetTensorImpl()->bump_version();
}

/// Adam and AdamW.
template <typename OptimizerType, typename OptionsType, typename StateType>
struct AdamRule {
  using Optimizer = OptimizerType;
  using Options = OptionsType;
  using State = StateType;
  static constexpr const char* kernel_name =
      std::is_same_v<Optimizer, torch::optim::AdamW> ? "aten::_fused_adamw_" : "aten::_fused_adam_";
  static constexpr bool has_state_from_the_start = false;

  static Tensors tensors_of(State& state, const Options& options) {
    Tensors tensors{state.exp_avg(), state.exp_avg_sq()};
    if (options.amsgrad()) tensors.push_back(state.max_exp_avg_sq());
    return tensors;
  }

  static void step(torch::optim::Optimizer& optimizer, const Tensors& parameters, const Tensors& gradients,
                   const Options& options) {
    Tensors exp_avgs, exp_avg_sqs, max_exp_avg_sqs, steps;
    StepTensors step_tensors(parameters.front().device());
    for (const at::Tensor& parameter : parameters) {
      State* known = state_of<State>(optimizer, parameter);
      State& state = known != nullptr ? *known : add_state(optimizer, parameter, first_state(parameter, options));
      state.step(state.step() + 1);
      exp_avgs.push_back(state.exp_avg());
      exp_avg_sqs.push_back(state.exp_avg_sq());
      if (options.amsgrad()) max_exp_avg_sqs.push_back(state.max_exp_avg_sq());
      steps.push_back(step_tensors.of(state.step()));
    }
    const auto kernel = [&](auto fused) {
      const auto [beta1, beta2] = options.betas();
      const at::AutoDispatchBelowADInplaceOrView without_autograd;
      fused(parameters, gradients, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, steps, options.lr(), beta1, beta2,
            options.weight_decay(), options.eps(), options.amsgrad(), /*maximize=*/false);
    };
    if constexpr (std::is_same_v<Optimizer, torch::optim::AdamW>) {
      kernel([](const auto&... arguments) { at::_fused_adamw_(arguments...); });
    } else {
      kernel([](const auto&... arguments) { at::_fused_adam_(arguments...); });
    }
    bump_versions(parameters);
    bump_versions(exp_avgs);
    bump_versions(exp_avg_sqs);
    bump_versions(max_exp_avg_sqs);
  }

 private:
  static State first_state(const at::Tensor& parameter, const Options& options) {
    State state;
    state.exp_avg(at::zeros_like(parameter, at::MemoryFormat::Preserve));
    state.exp_avg_sq(at::zeros_like(parameter, at::MemoryFormat::Preserve));
    if (options.amsgrad()) state.max_exp_avg_sq(at::zeros_like(parameter, at::MemoryFormat::Preserve));
    return state;
  }
};

struct SGDRule {
  using Optimizer = torch::optim::SGD;
  using Options = torch::optim::SGDOptions;
  using State = torch::optim::SGDParamState;
  static constexpr const char* kernel_name = "aten::_fused_sgd_";
  static constexpr bool has_state_from_the_start = false;

  static Tensors tensors_of(State& state, const Options& options) {
    return options.momentum() != 0 ? Tensors{state.momentum_buffer()} : Tensors();
  }

  static void step(torch::optim::Optimizer& optimizer, const Tensors& parameters, const Tensors& gradients,
                   const Options& options) {
    if (options.momentum() == 0) return kernel(parameters, gradients, {}, options, false);
    // A parameter's momentum begins with its first gradient, at a different step for each parameter.
    struct {
      Tensors parameters, gradients, buffers;
    } first, later;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      State* state = state_of<State>(optimizer, parameters[i]);
      auto& lists = state != nullptr ? later : first;
      if (state == nullptr) {
        State begun;
        begun.momentum_buffer(at::empty_like(parameters[i], at::MemoryFormat::Preserve));
        state = &add_state(optimizer, parameters[i], std::move(begun));
      }
      lists.parameters.push_back(parameters[i]);
      lists.gradients.push_back(gradients[i]);
      lists.buffers.push_back(state->momentum_buffer());
    }
    kernel(first.parameters, first.gradients, first.buffers, options, true);
    kernel(later.parameters, later.gradients, later.buffers, options, false);
  }

 private:
  static void kernel(const Tensors& parameters, const Tensors& gradients, const Tensors& buffers,
                     const Options& options, bool is_first_step) {
    if (parameters.empty()) return;
    {
      const at::AutoDispatchBelowADInplaceOrView without_autograd;
      at::_fused_sgd_(parameters, gradients, buffers, options.weight_decay(), options.momentum(), options.lr(),
                      options.dampening(), options.nesterov(), /*maximize=*/false, is_first_step);
    }
    bump_versions(parameters);
    bump_versions(buffers);
  }
};

struct AdagradRule {
  using Optimizer = torch::optim::Adagrad;
  using Options = torch::optim::AdagradOptions;
  using State = torch::optim::AdagradParamState;
  static constexpr const char* kernel_name = "aten::_fused_adagrad_";
  static constexpr bool has_state_from_the_start = true;

  static Tensors tensors_of(State& state, const Options&) { return {state.sum()}; }

  static void step(torch::optim::Optimizer& optimizer, const Tensors& parameters, const Tensors& gradients,
                   const Options& options) {
    Tensors sums, steps;
    StepTensors step_tensors(parameters.front().device());
    for (const at::Tensor& parameter : parameters) {
      State& state = *state_of<State>(optimizer, parameter);
      state.step(state.step() + 1);
      sums.push_back(state.sum());
      steps.push_back(step_tensors.of(state.step()));
    }
    {
      const at::AutoDispatchBelowADInplaceOrView without_autograd;
      at::_fused_adagrad_(parameters, gradients, sums, steps, options.lr(), options.lr_decay(), options.weight_decay(),
                          options.eps(), /*maximize=*/false);
    }
    bump_versions(parameters);
    bump_versions(sums);
  }
};

}  // namespace tutti::fused
