#pragma once
// Hooks on parameters and on their AccumulateGrad nodes. They run before and after a gradient is added to .grad.
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

namespace tutti::sync {

/// The destructor detaches the hooks. The callbacks run on the thread of the backward pass; their exceptions leave
/// backward(). They also run if the incoming gradient is undefined.
class AutogradHooks {
 public:
  using Callback = std::function<void(int parameter)>;

  /// `arriving` is called before `before`, also for a parameter that does not have its hooked node any more.
  AutogradHooks(std::vector<at::Tensor> parameters, Callback arriving, Callback before, Callback after);
  ~AutogradHooks();
  AutogradHooks(const AutogradHooks&) = delete;
  AutogradHooks& operator=(const AutogradHooks&) = delete;

  /// Whether the parameter still has the hooked node: module->to(dtype) and torch::load() replace it silently.
  bool still_hooked(int parameter) const;
  /// A parameter that has the hooks of an older object too; nullopt if none.
  std::optional<int> hooked_twice() const;

 private:
  // Shared with the hooks, which belong to the graph's nodes and may outlive this object.
  struct HookState {
    std::mutex mutex;
    std::atomic<bool> active = true;  // changes with the mutex locked
    Callback arriving;
    Callback before;
    Callback after;
  };
  class PreHook;
  class PostHook;
  // The smart pointer's type differs between LibTorch versions.
  using NodePointer = decltype(torch::autograd::impl::grad_accumulator(std::declval<const at::Tensor&>()));

  std::shared_ptr<HookState> state_;
  std::vector<at::Tensor> parameters_;
  std::vector<unsigned> tensor_hooks_;                                 // by parameter, for remove_hook()
  std::vector<std::pair<int, std::shared_ptr<HookState>>> of_others_;  // parameters with hooks of older objects
  // Keeps the nodes alive: a tensor holds its node by a weak pointer only.
  std::vector<NodePointer> nodes_;
};

}  // namespace tutti::sync
