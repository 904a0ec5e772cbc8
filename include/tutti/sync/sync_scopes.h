#pragma once
// Scopes over reducers: what a loop opens around its backward passes.
#include <exception>
#include <memory>
#include <utility>
#include <vector>

namespace tutti {

class Reducer;

/// One accumulate() scope as a reducer sees it.
struct AccumulationStep {
  double weight = 1;             ///< of the scope's micro-batch
  bool syncs = true;             ///< it is its window's last
  bool sync_each_batch = false;  ///< synchronize although it is not
};

/// Under it backward passes keep their gradients to their own rank. It may stand around backward alone: what counts is
/// where backward runs. Movable.
class [[nodiscard]] NoSyncScope {
 public:
  /// Accelerator::no_sync() and DistributedDataParallel::no_sync() make one.
  explicit NoSyncScope(std::vector<std::shared_ptr<Reducer>> reducers);
  ~NoSyncScope();
  NoSyncScope(NoSyncScope&& other) noexcept : reducers_(std::exchange(other.reducers_, {})) {}
  NoSyncScope& operator=(NoSyncScope&&) = delete;

 private:
  std::vector<std::shared_ptr<Reducer>> reducers_;
};

/// One micro-batch of a window. Where it is the window's last, its end completes what is left to synchronize: every
/// rank must open and close it alike, and its destructor may throw what a synchronization throws. While an exception
/// unwinds it waits for nobody: the others get the reason. Movable.
///
/// Keep it in a block of its own, `{ const auto scope = ...; }`: a block's end passes an exception on. What destroys an
/// object inside a function that may not throw ends the process (std::terminate) where this one throws:
/// std::optional::reset() and std::optional's and std::unique_ptr's destructors, containers, members of classes whose
/// destructors do not say noexcept(false).
class [[nodiscard]] AccumulateScope {
 public:
  /// Each reducer has windows of its own, so the micro-batch may be the last one for some of them only.
  struct Member {
    std::shared_ptr<Reducer> reducer;  ///< of a model's parameters
    AccumulationStep step;             ///< what the scope is to it
  };

  /// Accelerator::accumulate() makes one.
  explicit AccumulateScope(const std::vector<Member>& members);
  ~AccumulateScope() noexcept(false);
  AccumulateScope(AccumulateScope&& other) noexcept
      : reducers_(std::exchange(other.reducers_, {})), exceptions_(other.exceptions_) {}
  AccumulateScope& operator=(AccumulateScope&&) = delete;

 private:
  std::vector<std::shared_ptr<Reducer>> reducers_;
  int exceptions_ = std::uncaught_exceptions();
};

}  // namespace tutti
