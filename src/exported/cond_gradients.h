#pragma once
// The gradients of torch.cond.
#include <ATen/core/ivalue.h>

#include <vector>

namespace tutti::exported {

/// The operands of a torch.cond that need a gradient; empty without grad mode.
std::vector<at::Tensor> operands_with_gradients(const std::vector<c10::IValue>& operands);

/// Makes a backward pass through `outputs` reach all `operands`: with zeros where the chosen branch does not use them,
/// as in PyTorch, so that an optimizer steps on the parameters of both branches.
void reach_operands(std::vector<c10::IValue>& outputs, const std::vector<at::Tensor>& operands);

}  // namespace tutti::exported
