#pragma once
// Callbacks that autograd owns; they may outlive the reducer.
#include <torch/csrc/autograd/function.h>

#include <memory>
#include <utility>

#include "sync/reducer_impl.h"

namespace tutti {

/// The reducer, or null after its destruction.
struct Reducer::Impl::Handle {
  Impl* reducer = nullptr;
};

/// Owned by a callback of a graph task. If the task is destroyed without calling it, an exception ended the backward
/// pass: LibTorch has no other notification.
class Reducer::Impl::GraphTaskCallback {
 public:
  GraphTaskCallback(std::shared_ptr<Handle> handle, int task) : handle_(std::move(handle)), task_(task) {}
  ~GraphTaskCallback() {
    if (!called_ && handle_->reducer != nullptr) handle_->reducer->on_task_error(task_);
  }
  GraphTaskCallback(const GraphTaskCallback&) = delete;
  GraphTaskCallback& operator=(const GraphTaskCallback&) = delete;

  void on_end() {
    called_ = true;
    Impl* const reducer = handle_->reducer;
    if (reducer != nullptr) reducer->in_pass([&] { reducer->on_task_end(task_); });
  }
  void on_complete() {
    called_ = true;
    Impl* const reducer = handle_->reducer;
    if (reducer == nullptr) return;
    reducer->in_pass([&] {
      const std::lock_guard lock(reducer->mutex_);
      reducer->finalize_backward();
    });
  }

 private:
  std::shared_ptr<Handle> handle_;
  int task_;
  bool called_ = false;
};

/// A hook on the next node of an outer backward pass after a node that ran a nested pass. Only while such a node is
/// evaluated can a callback for the end of the outer pass be queued.
class Reducer::Impl::OuterPassHook : public torch::autograd::FunctionPreHook {
 public:
  OuterPassHook(std::shared_ptr<Handle> handle, std::int64_t pass) : handle_(std::move(handle)), pass_(pass) {}
  /// Sets the pass of the hook. Returns false, and does nothing, for a hook of another reducer.
  bool renew(const Handle* handle, std::int64_t pass) {
    if (handle_.get() != handle) return false;
    pass_ = pass;
    return true;
  }
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& gradients) override {
    // The node may outlive its pass.
    if (handle_->reducer == nullptr) return gradients;
    const std::lock_guard lock(handle_->reducer->mutex_);
    if (handle_->reducer->pass_.open && handle_->reducer->pass_.number == pass_) handle_->reducer->register_task();
    return gradients;
  }

 private:
  std::shared_ptr<Handle> handle_;
  std::int64_t pass_;
};

}  // namespace tutti
