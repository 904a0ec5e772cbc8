#pragma once
// An optimizer of a program, with state that its first step creates and that its save() writes.
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros_like.h>
#include <torch/optim/sgd.h>
#include <torch/serialize/input-archive.h>
#include <torch/serialize/output-archive.h>

#include <memory>
#include <utility>
#include <vector>

namespace tutti::test {

/// SGD whose momentum is of the first parameter only.
class Lazy : public torch::optim::Optimizer {
 public:
  explicit Lazy(std::vector<at::Tensor> parameters)
      : Optimizer(std::move(parameters), std::make_unique<torch::optim::SGDOptions>(0.1)) {}

  at::Tensor step(LossClosure = nullptr) override {
    const at::NoGradGuard no_grad;
    const std::vector<at::Tensor>& parameters = param_groups()[0].params();
    if (!momentum.defined()) momentum = at::zeros_like(parameters[0]);
    momentum.mul_(0.9).add_(parameters[0].grad());
    parameters[0].sub_(momentum, 0.1);
    for (std::size_t i = 1; i < parameters.size(); ++i) parameters[i].sub_(parameters[i].grad(), 0.1);
    return {};
  }
  void save(torch::serialize::OutputArchive& archive) const override {
    if (momentum.defined()) archive.write("momentum", momentum, /*is_buffer=*/true);
  }
  void load(torch::serialize::InputArchive& archive) override {
    if (!keeps_state) momentum = at::Tensor();
    at::Tensor saved;
    if (archive.try_read("momentum", saved, /*is_buffer=*/true)) momentum = saved;
  }

  at::Tensor momentum;
  bool keeps_state = false;  // load() without a saved momentum
};

}  // namespace tutti::test
