#pragma once
// The positions of the running loops over loaders. Gradient accumulation ends a window with the data, and metrics leave
// out repeated samples.
#include <algorithm>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "tutti/detail/data/epoch_cursor.h"

namespace tutti {

/// The position of a loop's first batch in the data that ranks read together.
struct LoopStart {
  std::int64_t loader = -1;  ///< number of the loader, equal on all ranks; -1 if ranks do not read it together
  std::int64_t epoch = -1;   ///< counted from 0; -1 if all epochs of the loader have the same batches
  std::int64_t batch = 0;    ///< number of the batch in the epoch, counted from 0
};

/// The position of one loop over a loader.
struct LoaderPosition {
  bool last_batch = false;  ///< the current batch is the loop's last
  /// Ranks receive different numbers of batches in this loop.
  bool uneven = false;
  /// Number of samples in the batch, if it is known.
  std::optional<std::int64_t> samples{};
  /// Number of samples at the end of the batch that repeat earlier ones, to fill the batch.
  std::int64_t repeated = 0;
  /// The whole batch repeats an earlier one, whether or not `samples` is known.
  bool all_repeated = false;
  /// The batch is filler: this rank has run out of data and another rank has not. Its weight is 0 (see JoinScope).
  bool filler = false;
  /// The batch is this rank's part of a batch that is split over all ranks.
  bool split = false;
  /// The loader is not for training, so no backward pass may run on its batches.
  bool evaluation = false;
  /// Identifies the loader; empty without a loop. A weak pointer, so that no later loader compares equal.
  std::weak_ptr<const void> loader{};
  std::int64_t loop = 0;   ///< number of the loop in this process, from 1; 0 without a loop
  std::int64_t batch = 0;  ///< number of the batch in the loop, from 1
  LoopStart start{};       ///< position of the first batch of the loop
};

/// The running loops, innermost last, and the open join scopes. Not thread safe.
class LoaderStack {
 public:
  void push(std::shared_ptr<const LoaderPosition> position) { loops_.push_back(std::move(position)); }
  void remove(const LoaderPosition* position) {
    std::erase_if(loops_, [position](const auto& loop) { return loop.get() == position; });
  }
  bool empty() const { return loops_.empty(); }
  /// The position of the innermost loop; a default position without a loop.
  LoaderPosition innermost() const { return loops_.empty() ? LoaderPosition() : *loops_.back(); }
  /// The position of the innermost loop over a loader for training; without one, innermost().
  LoaderPosition for_training() const {
    const auto training =
        std::ranges::find_if(loops_.rbegin(), loops_.rend(), [](const auto& loop) { return !loop->evaluation; });
    return training == loops_.rend() ? innermost() : **training;
  }
  /// Sets a function that is called before each batch of a loop, on the loop's thread. The loop rethrows its
  /// exceptions.
  void before_batches(std::function<void()> call) { before_batch_ = std::move(call); }
  /// Sets a function that is called at the end of each loop that has delivered its last batch and that no exception
  /// ends, with the position of the loop. It must not throw. Empty: none.
  void after_loops(std::function<void(const LoaderPosition&)> call) { after_loop_ = std::move(call); }
  /// True if the position of the innermost loop says which batch all ranks should be at: no other loop runs, and no
  /// rank may have run out of data.
  bool is_comparable() const {
    return loops_.size() == 1 && joins_.empty() && !loops_.back()->uneven && !loops_.back()->filler;
  }
  /// True if the loop for_training() has delivered its last batch.
  bool at_last_batch() const { return for_training().last_batch; }

  /// The tail of a loop that begins now, over a loader with this option.
  EpochTail tail(bool even_batches) const {
    if (!joins_.empty()) even_batches = joins_.back()->value_or(even_batches);
    if (even_batches) return EpochTail::repeat;
    return joins_.empty() ? EpochTail::shorten : EpochTail::join;
  }

 private:
  friend class JoinScope;
  friend class RunningLoop;

  std::function<void()> before_batch_;
  std::function<void(const LoaderPosition&)> after_loop_;
  std::int64_t loops_begun_ = 0;
  std::vector<std::shared_ptr<const LoaderPosition>> loops_;
  std::vector<std::shared_ptr<const std::optional<bool>>> joins_;  // even_batches of the open scopes
};

/// Keeps a loop on the stack until destruction, also on a break or an exception.
class RunningLoop {
 public:
  explicit RunningLoop(std::shared_ptr<LoaderStack> stack, const LoopStart& start = {})
      : stack_(std::move(stack)),
        position_(std::make_shared<LoaderPosition>()),
        start_(start),
        number_(++stack_->loops_begun_) {
    stack_->push(position_);
  }
  ~RunningLoop() {
    stack_->remove(position_.get());
    const bool unwinding = std::uncaught_exceptions() > exceptions_;
    if (position_->last_batch && !unwinding && stack_->after_loop_) stack_->after_loop_(*position_);
  }
  RunningLoop(const RunningLoop&) = delete;
  RunningLoop& operator=(const RunningLoop&) = delete;

  /// The loop delivers a batch. The numbers of loop and batch, and the start, are set here.
  void set(const LoaderPosition& position) {
    if (stack_->before_batch_) stack_->before_batch_();
    const std::int64_t batch = position_->batch + 1;
    *position_ = position;
    position_->loop = number_;
    position_->batch = batch;
    position_->start = start_;
  }

 private:
  std::shared_ptr<LoaderStack> stack_;
  std::shared_ptr<LoaderPosition> position_;
  LoopStart start_;
  std::int64_t number_;
  int exceptions_ = std::uncaught_exceptions();
};

/// While the scope is open, loops that begin over loaders of this stack without even_batches have the same number of
/// batches on every rank: a rank that has run out of data continues with filler batches. Scopes may nest; the last one
/// opened applies. A moved-from scope is closed.
class [[nodiscard]] JoinScope {
 public:
  /// `even_batches` overrides the loaders' own option.
  explicit JoinScope(std::shared_ptr<LoaderStack> stack, std::optional<bool> even_batches = std::nullopt)
      : stack_(std::move(stack)), even_batches_(std::make_shared<const std::optional<bool>>(even_batches)) {
    stack_->joins_.push_back(even_batches_);
  }
  ~JoinScope() { close(); }
  JoinScope(JoinScope&& other) noexcept = default;
  JoinScope& operator=(JoinScope&& other) noexcept {
    if (this == &other) return *this;
    close();
    stack_ = std::move(other.stack_);
    even_batches_ = std::move(other.even_batches_);
    return *this;
  }
  JoinScope(const JoinScope&) = delete;
  JoinScope& operator=(const JoinScope&) = delete;

 private:
  void close() noexcept {
    if (stack_) std::erase(stack_->joins_, even_batches_);
  }

  std::shared_ptr<LoaderStack> stack_;
  std::shared_ptr<const std::optional<bool>> even_batches_;  // this scope's entry in LoaderStack::joins_
};

}  // namespace tutti
