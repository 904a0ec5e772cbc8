#include "train/precision_guard.h"

#include <torch/csrc/autograd/generated/Functions.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <string>
#include <typeinfo>
#include <utility>

#include "tutti/core/error.h"

namespace tutti {

namespace {

/// Whether the graph of the backward pass on this thread holds a conversion of dtypes, as autocast makes them.
bool graph_holds_a_cast() {
  const auto* nodes = torch::autograd::get_current_graph_task_nodes_in_graph();
  return nodes != nullptr && std::ranges::any_of(*nodes, [](const torch::autograd::Node* node) {
           return typeid(*node) == typeid(torch::autograd::generated::ToCopyBackward0);
         });
}

}  // namespace

void PrecisionGuard::check(bool weighs_nothing) {
  if (weighs_nothing && !in_scaled_backward_) {
    throw UsageError(
        "loss.backward() on a batch that stands in for data that this rank no longer has: its gradient must not count. "
        "Use accelerator.backward(loss)");
  }
  if (precision_ == Precision::no) return;
  // Several reducers meet one pass.
  const int task = torch::autograd::get_current_graph_task_id();
  if (task == checked_task_) return;
  const std::string name(to_string(precision_));
  if (precision_ == Precision::fp16 && !in_scaled_backward_) {
    throw UsageError(
        "loss.backward() with mixed precision fp16: small gradients would vanish unless the loss is scaled. "
        "Use accelerator.backward(loss)");
  }
  if (!std::exchange(autocast_opened_, false) && !graph_holds_a_cast()) {
    throw UsageError("mixed precision is " + name +
                     ", but this forward pass ran in full precision: put the forward pass "
                     "and the loss into accelerator.autocast()");
  }
  checked_task_ = task;
}

}  // namespace tutti
