#pragma once
// Where the loops over loaders stand, so that gradient accumulation can end a window with the data.
#include <memory>
#include <utility>
#include <vector>

namespace tutti {

/// Where one loop over a loader stands.
struct LoaderPosition {
  bool last_batch = false;  ///< the batch that was delivered last is the epoch's last
};

/// The loops that run now, innermost last. Not thread safe.
class LoaderStack {
 public:
  void push(std::shared_ptr<const LoaderPosition> position) { loops_.push_back(std::move(position)); }
  void remove(const LoaderPosition* position) {
    std::erase_if(loops_, [position](const auto& loop) { return loop.get() == position; });
  }
  bool empty() const { return loops_.empty(); }
  /// Whether the innermost loop has delivered its last batch; false without a loop.
  bool at_last_batch() const { return !loops_.empty() && loops_.back()->last_batch; }

 private:
  std::vector<std::shared_ptr<const LoaderPosition>> loops_;
};

/// A loop that is on the stack as long as this object lives, so a break or an exception leaves nothing behind.
class RunningLoop {
 public:
  explicit RunningLoop(std::shared_ptr<LoaderStack> stack)
      : stack_(std::move(stack)), position_(std::make_shared<LoaderPosition>()) {
    stack_->push(position_);
  }
  ~RunningLoop() { stack_->remove(position_.get()); }
  RunningLoop(const RunningLoop&) = delete;
  RunningLoop& operator=(const RunningLoop&) = delete;

  void set_last_batch(bool last) { position_->last_batch = last; }

 private:
  std::shared_ptr<LoaderStack> stack_;
  std::shared_ptr<LoaderPosition> position_;
};

}  // namespace tutti
