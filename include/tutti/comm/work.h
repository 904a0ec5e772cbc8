#pragma once
// The handle of an operation in flight.
#include <exception>
#include <functional>
#include <memory>

namespace tutti {

namespace comm {
class WorkState;
}

/// A copyable handle. Destroying it without waiting is allowed: the operation continues and keeps its buffers
/// allocated. The program then does not see a MismatchError, after which the communicator still works. Thread safe.
class Work {
 public:
  /// The handle of a completed operation.
  Work() = default;
  /// For implementations of operations.
  explicit Work(std::shared_ptr<comm::WorkState> state);

  /// Blocks until the operation has completed. Throws the operation's exception. The operation's timeout applies. If
  /// the tensors are on a device, the operation completes when its last step is queued there: wait() then makes the
  /// calling thread's current stream wait for the result, and the host does not wait for the device.
  void wait() const;
  /// Whether the operation has completed, so that wait() does not block.
  bool is_completed() const;
  /// The exception that wait() throws; null if the operation is in flight or succeeded.
  std::exception_ptr exception() const;
  /// Calls `continuation` once when the operation completes, with or without an error. If it has completed, calls it at
  /// once; otherwise on the thread that completes the operation. `continuation` must not block and must not throw. A
  /// thread in wait() may wake before it runs. Several continuations run in the order in which they were added. A
  /// continuation that uses tensors on a device calls wait() first.
  void then(std::function<void()> continuation) const;

 private:
  std::shared_ptr<comm::WorkState> state_;
};

}  // namespace tutti
