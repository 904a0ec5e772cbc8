#pragma once
// The handle of an operation that is under way.
#include <exception>
#include <functional>
#include <memory>

namespace tutti {

namespace comm {
class WorkState;
}

/// A copyable handle. Letting it go without waiting is allowed: the operation goes on and keeps its buffers alive.
/// Thread safe.
class Work {
 public:
  /// A finished one.
  Work() = default;
  /// For those who implement operations.
  explicit Work(std::shared_ptr<comm::WorkState> state);

  /// Blocks until the operation has ended; throws what it threw. The deadline is the operation's own.
  void wait() const;
  /// Whether wait() would return or throw at once.
  bool is_completed() const;
  /// What wait() would throw; null while the operation has not ended, and where it ended well.
  std::exception_ptr exception() const;
  /// Calls `continuation` once, when the operation has ended, well or not: on the thread that ended it, before that
  /// does anything else, or at once where it has ended. So it must not block, and not throw. Those who wait may be
  /// woken before it runs. Several are called in the order in which they were added.
  void then(std::function<void()> continuation) const;

 private:
  std::shared_ptr<comm::WorkState> state_;
};

}  // namespace tutti
