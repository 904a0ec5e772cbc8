#include "exported/cond_gradients.h"

#include <ATen/Functions.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cstddef>
#include <utility>

namespace tutti::exported {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Returns its outputs. The gradients of the operands are zeros.
struct ReachOperands : torch::autograd::Function<ReachOperands> {
  static variable_list forward(AutogradContext* context, at::TensorList outputs, at::TensorList operands) {
    c10::List<at::Tensor> zeros;
    for (const at::Tensor& operand : operands)
      zeros.push_back(at::zeros({}, operand.options()).expand(operand.sizes()));
    context->saved_data["zeros"] = std::move(zeros);
    return outputs.vec();
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    for (const at::Tensor& zeros : context->saved_data["zeros"].toTensorVector()) gradients.push_back(zeros);
    return gradients;
  }
};

bool is_differentiable(const at::Tensor& tensor) {
  return tensor.defined() && (tensor.is_floating_point() || tensor.is_complex());
}

}  // namespace

std::vector<at::Tensor> operands_with_gradients(const std::vector<c10::IValue>& operands) {
  std::vector<at::Tensor> found;
  if (!at::GradMode::is_enabled()) return found;
  for (const c10::IValue& operand : operands) {
    if (operand.isTensor() && operand.toTensor().requires_grad()) found.push_back(operand.toTensor());
  }
  return found;
}

void reach_operands(std::vector<c10::IValue>& outputs, const std::vector<at::Tensor>& operands) {
  if (operands.empty()) return;
  std::vector<std::size_t> places;
  variable_list tensors;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (!outputs[i].isTensor() || !is_differentiable(outputs[i].toTensor())) continue;
    places.push_back(i);
    tensors.push_back(outputs[i].toTensor());
  }
  if (tensors.empty()) return;
  const variable_list reached = ReachOperands::apply(at::TensorList(tensors), at::TensorList(operands));
  for (std::size_t i = 0; i < places.size(); ++i) outputs[places[i]] = reached[i];
}

}  // namespace tutti::exported
