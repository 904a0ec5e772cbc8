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

/// True if the graph of this thread's backward pass contains a dtype conversion, as autocast inserts.
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
  if (!std::exchange(autocast_opened_, false) && !graph_holds_a_cast()) {
    throw UsageError("mixed precision is " + name +
                     ", but this forward pass ran in full precision: compute the forward pass "
                     "and the loss inside accelerator.autocast()");
  }
  checked_task_ = task;
}

}  // namespace tutti
