#pragma once
// What callbacks that autograd owns know of the reducer.
#include <torch/csrc/autograd/function.h>

#include <memory>
#include <utility>

#include "sync/reducer_impl.h"

namespace tutti {

/// Says whether the reducer still exists.
struct Reducer::Impl::Self {
  Impl* reducer = nullptr;
};

/// Lives in a callback of a graph task. If the task is destroyed without having called it, an exception ended the
/// backward pass: LibTorch tells in no other way.
class Reducer::Impl::PassToken {
 public:
  PassToken(std::shared_ptr<Self> self, int task) : self_(std::move(self)), task_(task) {}
  ~PassToken() {
    if (!done_ && self_->reducer != nullptr) self_->reducer->task_died(task_);
  }
  PassToken(const PassToken&) = delete;
  PassToken& operator=(const PassToken&) = delete;

  void ended() {
    done_ = true;
    Impl* const reducer = self_->reducer;
    if (reducer != nullptr) reducer->in_pass([&] { reducer->task_ended(task_); });
  }
  void completed() {
    done_ = true;
    Impl* const reducer = self_->reducer;
    if (reducer == nullptr) return;
    reducer->in_pass([&] {
      const std::lock_guard lock(reducer->mutex_);
      reducer->complete_pass();
    });
  }

 private:
  std::shared_ptr<Self> self_;
  int task_;
  bool done_ = false;
};

/// Hangs on the node of an outer backward pass that comes next after one that ran a nested pass: only there can the
/// outer pass be asked to tell when it ends.
class Reducer::Impl::OuterHook : public torch::autograd::FunctionPreHook {
 public:
  OuterHook(std::shared_ptr<Self> self, std::int64_t pass) : self_(std::move(self)), pass_(pass) {}
  /// Looks out for another pass, where this is a hook of the same reducer.
  bool renew(const Self* self, std::int64_t pass) {
    if (self_.get() != self) return false;
    pass_ = pass;
    return true;
  }
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& gradients) override {
    // The node may outlive its pass.
    if (self_->reducer == nullptr) return gradients;
    const std::lock_guard lock(self_->reducer->mutex_);
    if (self_->reducer->pass_.open && self_->reducer->pass_.number == pass_) self_->reducer->register_task();
    return gradients;
  }

 private:
  std::shared_ptr<Self> self_;
  std::int64_t pass_;
};

}  // namespace tutti
