#pragma once
// A number in shared memory that only grows and says how far a rank is. Other ranks wait for a value.
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>

#include "comm/backend/transfer_error.h"

namespace tutti::comm {

/// Has one writer and any number of waiters, in any processes that map it. Zero-initialized memory is a valid counter.
///
/// Memory order: the writer stores the value, then reads the number of waiters. A waiter increments that number, then
/// reads the value. All four accesses are sequentially consistent, so either the writer sees the waiter and wakes it,
/// or the waiter sees the value. Writes before advance_to() are visible to every thread that has read the value.
class SequenceCounter {
 public:
  /// Sets the value and wakes all waiters.
  void advance_to(std::uint32_t value);
  /// True if the counter has reached `value`. Values may wrap around.
  bool reached(std::uint32_t value) const;
  /// Blocks until the counter reaches `value`. Spins `spins` times, then sleeps. Calls `check_peer` at least every 20
  /// ms while it sleeps; `check_peer` may throw to end the wait. Returns false at the deadline.
  bool wait_for(std::uint32_t value, int spins, Deadline deadline, const std::function<void()>& check_peer);

 private:
  std::atomic<std::uint32_t> value_;
  std::atomic<std::uint32_t> waiters_;
};

}  // namespace tutti::comm
