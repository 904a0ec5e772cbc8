#pragma once
// Where the loops over loaders stand, so that gradient accumulation can end a window with the data, and metrics can
// leave out what was read twice.
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "tutti/detail/data/epoch_cursor.h"

namespace tutti {

/// Where one loop over a loader stands.
struct LoaderPosition {
  bool last_batch = false;  ///< the batch that was delivered last is the loop's last
  /// Ranks receive different numbers of batches in this loop.
  bool uneven = false;
  /// Samples in the batch, where that is known.
  std::optional<std::int64_t> samples{};
  /// Samples at the end of the batch that repeat earlier ones, so that all ranks have as many.
  std::int64_t repeated = 0;
  /// All of the batch repeats an earlier one, however many samples it has.
  bool all_repeated = false;
  /// The batch stands in for one that this rank no longer has, while others have: it weighs nothing (see JoinScope).
  bool filler = false;
};

/// The loops that run now, innermost last, and the join scopes that are open. Not thread safe.
class LoaderStack {
 public:
  void push(std::shared_ptr<const LoaderPosition> position) { loops_.push_back(std::move(position)); }
  void remove(const LoaderPosition* position) {
    std::erase_if(loops_, [position](const auto& loop) { return loop.get() == position; });
  }
  bool empty() const { return loops_.empty(); }
  /// Of the innermost loop; nothing is true without one.
  LoaderPosition innermost() const { return loops_.empty() ? LoaderPosition() : *loops_.back(); }
  /// Called before each batch of a loop, on its thread; what it throws comes out of the loop.
  void before_batches(std::function<void()> call) { before_batch_ = std::move(call); }
  /// Whether the innermost loop has delivered its last batch.
  bool at_last_batch() const { return innermost().last_batch; }

  /// How a loop that begins now reads its epoch's end, for a loader with this option.
  EpochTail tail(bool even_batches) const {
    if (!joins_.empty()) even_batches = joins_.back()->value_or(even_batches);
    if (even_batches) return EpochTail::repeat;
    return joins_.empty() ? EpochTail::shorten : EpochTail::join;
  }

 private:
  friend class JoinScope;
  friend class RunningLoop;

  std::function<void()> before_batch_;
  std::vector<std::shared_ptr<const LoaderPosition>> loops_;
  std::vector<std::shared_ptr<const std::optional<bool>>> joins_;  // what open scopes say about even_batches
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

  void set(const LoaderPosition& position) {
    if (stack_->before_batch_) stack_->before_batch_();
    *position_ = position;
  }

 private:
  std::shared_ptr<LoaderStack> stack_;
  std::shared_ptr<LoaderPosition> position_;
};

/// While it lives, loops that begin over loaders of this stack without even_batches run as often on every rank: a rank
/// whose samples have ended goes on with batches that stand in. Scopes may nest; the one opened last counts. What was
/// moved from is no scope any more.
class [[nodiscard]] JoinScope {
 public:
  /// `even_batches`: instead of what the loaders' own options say.
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
  std::shared_ptr<const std::optional<bool>> even_batches_;  // this scope's entry
};

}  // namespace tutti
