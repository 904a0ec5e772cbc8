#include "sync/autograd_hooks.h"

#include <utility>

namespace tutti::sync {

using torch::autograd::variable_list;

class AutogradHooks::PreHook : public torch::autograd::FunctionPreHook {
 public:
  PreHook(std::shared_ptr<HookState> state, int parameter) : state_(std::move(state)), parameter_(parameter) {}
  variable_list operator()(const variable_list& grads) override {
    const std::lock_guard lock(state_->mutex);
    if (state_->active) state_->before(parameter_);
    return grads;
  }

 private:
  std::shared_ptr<HookState> state_;
  int parameter_;
};

class AutogradHooks::PostHook : public torch::autograd::FunctionPostHook {
 public:
  PostHook(std::shared_ptr<HookState> state, int parameter) : state_(std::move(state)), parameter_(parameter) {}
  variable_list operator()(const variable_list& outputs, const variable_list&) override {
    const std::lock_guard lock(state_->mutex);
    if (state_->active) state_->after(parameter_);
    return outputs;
  }

 private:
  std::shared_ptr<HookState> state_;
  int parameter_;
};

AutogradHooks::AutogradHooks(const std::vector<at::Tensor>& parameters, Callback before, Callback after)
    : state_(std::make_shared<HookState>()) {
  state_->before = std::move(before);
  state_->after = std::move(after);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    nodes_.push_back(torch::autograd::impl::grad_accumulator(parameters[i]));
    nodes_.back()->add_pre_hook(std::make_unique<PreHook>(state_, static_cast<int>(i)));
    nodes_.back()->add_post_hook(std::make_unique<PostHook>(state_, static_cast<int>(i)));
  }
}

AutogradHooks::~AutogradHooks() {
  const std::lock_guard lock(state_->mutex);
  state_->active = false;
}

bool AutogradHooks::still_hooked(int parameter, const at::Tensor& tensor) const {
  return torch::autograd::impl::try_get_grad_accumulator(tensor).get() == nodes_[parameter].get();
}

}  // namespace tutti::sync
