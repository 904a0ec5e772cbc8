#pragma once
// Optimizers with fused kernels, and parameters and gradients that cover the special cases of their steps.
#include <ATen/Functions.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace tutti::test {

namespace optim = torch::optim;
using Groups = std::vector<optim::OptimizerParamGroup>;
using Tensors = std::vector<at::Tensor>;

inline at::Tensor random(at::IntArrayRef sizes, std::uint64_t seed, at::ScalarType dtype = at::kFloat) {
  at::manual_seed(seed);
  return at::randn(sizes, at::kDouble).to(dtype);
}

/// Sizes on both sides of a vector's length, a scalar, an empty tensor, and a weight in channels-last format.
inline Tensors make_parameters(at::ScalarType dtype) {
  const std::vector<std::vector<std::int64_t>> shapes{{33, 17}, {1}, {}, {0}, {15}, {257}, {4, 3, 5, 5}, {70000}};
  Tensors parameters;
  for (const auto& shape : shapes) parameters.push_back(random(shape, parameters.size(), dtype));
  parameters[6] = parameters[6].contiguous(at::MemoryFormat::ChannelsLast);
  for (at::Tensor& parameter : parameters) parameter.requires_grad_();
  return parameters;
}

/// Parameter 1 never has a gradient, 4 from the tenth step on, 5 in some steps.
inline void make_gradients(const Tensors& parameters, int step) {
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const bool used = i != 1 && (i != 4 || step >= 10) && (i != 5 || step % 3 == 0);
    at::Tensor gradient;
    if (used) {
      const auto values = random(parameters[i].sizes(), 1000 * step + i, parameters[i].scalar_type());
      gradient = at::empty_like(parameters[i].detach()).copy_(values.mul_(0.1));
    }
    parameters[i].mutable_grad() = gradient;
  }
}

struct Case {
  const char* name;
  std::function<std::unique_ptr<optim::Optimizer>(const Tensors&)> make;
};

/// Two groups, the second with different options.
template <typename Optimizer, typename Options>
Case make_case(const char* name, const Options& first, const Options& second) {
  return {name, [=](const Tensors& parameters) -> std::unique_ptr<optim::Optimizer> {
            Groups groups;
            groups.emplace_back(Tensors(parameters.begin(), parameters.begin() + 3), std::make_unique<Options>(first));
            groups.emplace_back(Tensors(parameters.begin() + 3, parameters.end()), std::make_unique<Options>(second));
            return std::make_unique<Optimizer>(groups, first);
          }};
}

using optim::AdagradOptions;
using optim::AdamOptions;
using optim::AdamWOptions;
using optim::SGDOptions;

inline const std::vector<Case> cases{
    make_case<optim::AdamW>("adamw", AdamWOptions(1e-2), AdamWOptions(3e-3).weight_decay(0.1).betas({0.8, 0.95})),
    make_case<optim::AdamW>("adamw_amsgrad", AdamWOptions(1e-2).amsgrad(true),
                            AdamWOptions(3e-3).weight_decay(0).amsgrad(true).eps(1e-6)),
    make_case<optim::Adam>("adam", AdamOptions(1e-2), AdamOptions(3e-3).weight_decay(0.1).betas({0.8, 0.95})),
    make_case<optim::Adam>("adam_amsgrad", AdamOptions(1e-2).amsgrad(true), AdamOptions(3e-3).amsgrad(true)),
    make_case<optim::SGD>("sgd", SGDOptions(1e-2), SGDOptions(3e-3).weight_decay(0.1)),
    make_case<optim::SGD>("sgd_momentum", SGDOptions(1e-2).momentum(0.9),
                          SGDOptions(3e-3).momentum(0.8).weight_decay(0.1).dampening(0.3)),
    make_case<optim::SGD>("sgd_nesterov", SGDOptions(1e-2).momentum(0.9).nesterov(true),
                          SGDOptions(3e-3).momentum(0.8).weight_decay(0.1).nesterov(true)),
    make_case<optim::Adagrad>("adagrad", AdagradOptions(1e-2),
                              AdagradOptions(3e-3).weight_decay(0.1).lr_decay(0.01).initial_accumulator_value(0.1)),
};

inline std::vector<std::string> names_of(const Tensors& parameters) {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < parameters.size(); ++i) names.push_back(std::to_string(i));
  return names;
}

}  // namespace tutti::test
