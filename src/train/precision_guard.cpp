#include "train/precision_guard.h"

#include <torch/csrc/autograd/generated/Functions.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <typeinfo>
#include <utility>

#include "tutti/core/error.h"

namespace tutti {

namespace {

using torch::autograd::Node;

/// Prefixes of the names of backward nodes: those of the operators that autocast computes in the lower precision on
/// every device that has them (lower_precision_fp in LibTorch's autocast_mode). The CPU's autocast does not cast mv().
constexpr std::array<std::string_view, 17> lower_precision_nodes{
    "AddbmmBackward", "AddmmBackward",  "BaddbmmBackward", "BmmBackward",      "ConvTbcBackward",   "Convolution",
    "CudnnRnn",       "LinearBackward", "MatmulBackward",  "MiopenRnn",        "MkldnnConvolution", "MkldnnLinear",
    "MkldnnRnnLayer", "MmBackward",     "PreluKernel",     "ScaledDotProduct", "ThnnFused"};

/// A conversion of a dtype, as autocast inserts.
bool is_cast(const Node* node) {
  return typeid(*node) == typeid(torch::autograd::generated::ToCopyBackward0);
}

bool needs_cast(Node* node) {
  if (node->num_inputs() == 0 || node->input_metadata(0).dtype() != at::kFloat) return false;
  const std::string name = node->name();
  return std::ranges::any_of(lower_precision_nodes,
                             [&name](std::string_view prefix) { return name.starts_with(prefix); });
}

/// True if autocast would have inserted a cast into the graph of this thread's backward pass, and there is none.
bool graph_lacks_a_cast() {
  const auto* nodes = torch::autograd::get_current_graph_task_nodes_in_graph();
  return nodes != nullptr && std::ranges::none_of(*nodes, is_cast) && std::ranges::any_of(*nodes, needs_cast);
}

}  // namespace

void PrecisionGuard::check(bool weighs_nothing) {
  if (weighs_nothing && !in_scaled_backward_) {
    throw UsageError(
        "loss.backward() on a filler batch: this rank has run out of data, so the gradient must not count. "
        "Use accelerator.backward(loss)");
  }
  if (precision_ == Precision::no) return;
  // Several reducers call this for the same backward pass.
  const int task = torch::autograd::get_current_graph_task_id();
  if (task == checked_task_) return;
  const std::string name(to_string(precision_));
  if (precision_ == Precision::fp16 && !in_scaled_backward_) {
    throw UsageError(
        "loss.backward() with mixed precision fp16: small gradients underflow unless the loss is scaled. "
        "Use accelerator.backward(loss)");
  }
  if (!std::exchange(autocast_opened_, false) && graph_lacks_a_cast()) {
    throw UsageError("mixed precision is " + name +
                     ", but this forward pass ran in full precision: compute the forward pass "
                     "and the loss inside accelerator.autocast()");
  }
  checked_task_ = task;
}

}  // namespace tutti
