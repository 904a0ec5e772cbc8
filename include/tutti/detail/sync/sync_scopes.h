#pragma once
// Scopes that a loop opens around its backward passes.
#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <utility>
#include <vector>

namespace tutti {

class Reducer;

/// The parameters of one accumulate() scope for one reducer.
struct AccumulationStep {
  double weight = 1;             ///< weight of the micro-batch in the mean; 0 or positive
  bool syncs = true;             ///< the scope is the last of its window
  bool sync_each_batch = false;  ///< synchronize even if the scope is not the last
  /// The weight of 1 stands for a rank's part of a batch that is split over all ranks.
  bool of_split_batch = false;
  /// Increases with every backward pass of this rank in the scope, so that the scope's weight counts for all reducers:
  /// a model that a pass does not reach has the gradient 0 there. AccumulateScope sets it. Null: the reducer is alone.
  std::shared_ptr<std::atomic<std::int64_t>> passes{};
};

/// While it exists, backward passes keep their gradients local. It may enclose backward alone, without the forward
/// pass. Movable.
class [[nodiscard]] NoSyncScope {
 public:
  /// Accelerator::no_sync() and DistributedDataParallel::no_sync() return one.
  explicit NoSyncScope(std::vector<std::shared_ptr<Reducer>> reducers);
  ~NoSyncScope();
  NoSyncScope(NoSyncScope&& other) noexcept : reducers_(std::exchange(other.reducers_, {})) {}
  NoSyncScope& operator=(NoSyncScope&&) = delete;

 private:
  std::vector<std::shared_ptr<Reducer>> reducers_;
};

/// One micro-batch of an accumulation window. If it is the last of the window, its end runs the synchronization that is
/// still due. Every rank must open and close it in the same order. The destructor may throw the exceptions of a
/// synchronization. During unwinding it waits for no rank; the other ranks receive the reason. Movable.
///
/// Keep it in a block of its own, `{ const auto scope = ...; }`, which propagates the exception. Do not let a noexcept
/// function destroy it: an exception then ends the process (std::terminate). Such functions are std::optional::reset(),
/// the destructors of std::optional, std::unique_ptr and containers, and destructors without noexcept(false).
class [[nodiscard]] AccumulateScope {
 public:
  /// A reducer of the scope. Each reducer has its own windows: the micro-batch may be the last for some reducers only.
  struct Member {
    std::shared_ptr<Reducer> reducer;  ///< reducer of a model's parameters
    AccumulationStep step;             ///< parameters of the scope for this reducer
  };

  /// Accelerator::accumulate() returns one.
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
