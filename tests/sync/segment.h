#pragma once
// Activation checkpointing.
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/modules/linear.h>

namespace tutti::test {

/// A layer that runs forward again in backward. Only the nested backward pass reaches the layer's parameters.
struct Segment : torch::autograd::Function<Segment> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, torch::nn::Linear layer) {
    context->save_for_backward({x});
    context->saved_data["layer"] = reinterpret_cast<std::int64_t>(layer.get());
    return layer->forward(x);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    auto* const layer = reinterpret_cast<torch::nn::LinearImpl*>(context->saved_data["layer"].toInt());
    const at::Tensor x = context->get_saved_variables()[0].detach().requires_grad_();
    const at::AutoGradMode enable(true);
    layer->forward(x).backward(gradients[0]);
    return {x.grad(), at::Tensor()};
  }
};

}  // namespace tutti::test
