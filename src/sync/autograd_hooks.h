#pragma once
// Hooks on the AccumulateGrad nodes of parameters: called before and after a gradient is added to .grad.
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <functional>
#include <memory>
#include <mutex>
#include <vector>

namespace tutti::sync {

/// Attached for as long as this object lives. The callbacks run on the thread that runs the backward pass; what they
/// throw leaves backward(). They also run when the incoming gradient is undefined.
class AutogradHooks {
 public:
  using Callback = std::function<void(int parameter)>;

  AutogradHooks(const std::vector<at::Tensor>& parameters, Callback before, Callback after);
  ~AutogradHooks();
  AutogradHooks(const AutogradHooks&) = delete;
  AutogradHooks& operator=(const AutogradHooks&) = delete;

  /// Whether `tensor` still has the node that was hooked: module->to(dtype) makes it drop the node without a word.
  bool still_hooked(int parameter, const at::Tensor& tensor) const;

 private:
  // The hooks belong to the graph's nodes, which may outlive this object.
  struct HookState {
    std::mutex mutex;
    bool active = true;
    Callback before;
    Callback after;
  };
  class PreHook;
  class PostHook;
  // Its smart pointer differs between LibTorch versions.
  using NodePointer = decltype(torch::autograd::impl::grad_accumulator(std::declval<const at::Tensor&>()));

  std::shared_ptr<HookState> state_;
  // A node lives only while somebody holds it.
  std::vector<NodePointer> nodes_;
};

}  // namespace tutti::sync
