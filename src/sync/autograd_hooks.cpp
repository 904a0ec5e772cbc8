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
  const std::shared_ptr<HookState>& state() const { return state_; }

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

AutogradHooks::AutogradHooks(std::vector<at::Tensor> parameters, Callback arriving, Callback before, Callback after)
    : state_(std::make_shared<HookState>()), parameters_(std::move(parameters)) {
  state_->arriving = std::move(arriving);
  state_->before = std::move(before);
  state_->after = std::move(after);
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const int parameter = static_cast<int>(i);
    nodes_.push_back(torch::autograd::impl::grad_accumulator(parameters_[i]));
    for (const auto& hook : nodes_.back()->pre_hooks()) {
      const auto* const other = dynamic_cast<const PreHook*>(hook.get());
      if (other != nullptr && other->state()->active) of_others_.emplace_back(parameter, other->state());
    }
    tensor_hooks_.push_back(parameters_[i].register_hook([state = state_, parameter](const at::Tensor&) {
      const std::lock_guard lock(state->mutex);
      if (state->active) state->arriving(parameter);
    }));
    nodes_.back()->add_pre_hook(std::make_unique<PreHook>(state_, parameter));
    nodes_.back()->add_post_hook(std::make_unique<PostHook>(state_, parameter));
  }
}

AutogradHooks::~AutogradHooks() {
  const std::lock_guard lock(state_->mutex);
  state_->active = false;
  for (std::size_t i = 0; i < parameters_.size(); ++i) parameters_[i].remove_hook(tensor_hooks_[i]);
}

bool AutogradHooks::still_hooked(int parameter) const {
  return torch::autograd::impl::try_get_grad_accumulator(parameters_[parameter]).get() == nodes_[parameter].get();
}

std::optional<int> AutogradHooks::hooked_twice() const {
  for (const auto& [parameter, other] : of_others_) {
    if (other->active) return parameter;
  }
  return std::nullopt;
}

}  // namespace tutti::sync
