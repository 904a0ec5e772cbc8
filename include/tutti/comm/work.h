#pragma once
// The handle of an operation that is under way.
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

 private:
  std::shared_ptr<comm::WorkState> state_;
};

}  // namespace tutti
