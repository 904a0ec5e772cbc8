#pragma once
// Hooks on the AccumulateGrad nodes of parameters. They run before and after a gradient is added to .grad.
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <functional>
#include <memory>
#include <mutex>
#include <vector>

namespace tutti::sync {

/// The destructor detaches the hooks. The callbacks run on the thread of the backward pass; their exceptions leave
/// backward(). They also run if the incoming gradient is undefined.
class AutogradHooks {
 public:
  using Callback = std::function<void(int parameter)>;

  AutogradHooks(const std::vector<at::Tensor>& parameters, Callback before, Callback after);
  ~AutogradHooks();
  AutogradHooks(const AutogradHooks&) = delete;
  AutogradHooks& operator=(const AutogradHooks&) = delete;

  /// Whether `tensor` still has the hooked node: module->to(dtype) replaces the node silently.
  bool still_hooked(int parameter, const at::Tensor& tensor) const;

 private:
  // Shared with the hooks, which belong to the graph's nodes and may outlive this object.
  struct HookState {
    std::mutex mutex;
    bool active = true;
    Callback before;
    Callback after;
  };
  class PreHook;
  class PostHook;
  // The smart pointer's type differs between LibTorch versions.
  using NodePointer = decltype(torch::autograd::impl::grad_accumulator(std::declval<const at::Tensor&>()));

  std::shared_ptr<HookState> state_;
  // Keeps the nodes alive: a tensor holds its node by a weak pointer only.
  std::vector<NodePointer> nodes_;
};

}  // namespace tutti::sync
