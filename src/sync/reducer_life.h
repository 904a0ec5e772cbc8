#pragma once
// What callbacks that autograd owns know of the reducer.
#include <memory>
#include <utility>

#include "sync/reducer_impl.h"

namespace tutti {

/// Says whether the reducer still exists.
struct Reducer::Impl::Life {
  Impl* reducer = nullptr;
};

/// Lives in a callback of a graph task. If the task is destroyed without having called it, an exception ended the
/// backward pass: LibTorch tells in no other way.
class Reducer::Impl::PassToken {
 public:
  PassToken(std::shared_ptr<Life> life, int task) : life_(std::move(life)), task_(task) {}
  ~PassToken() {
    if (!done_ && life_->reducer != nullptr) life_->reducer->task_died(task_);
  }
  PassToken(const PassToken&) = delete;
  PassToken& operator=(const PassToken&) = delete;

  void ended() {
    done_ = true;
    if (life_->reducer != nullptr) life_->reducer->task_ended(task_);
  }
  void completed() {
    done_ = true;
    if (life_->reducer == nullptr) return;
    const std::lock_guard lock(life_->reducer->mutex_);
    life_->reducer->complete_pass();
  }

 private:
  std::shared_ptr<Life> life_;
  int task_;
  bool done_ = false;
};

}  // namespace tutti
