#pragma once
// A number in shared memory that only rises: how far a rank has come. Others wait for it.
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>

#include "comm/backend/transfer_error.h"

namespace tutti::comm {

/// One writer, any number of waiters, in any processes that map it. Zero-initialized memory is a valid one.
///
/// The order that makes it work: the writer stores the value, then reads the number of waiters; a waiter raises that
/// number, then reads the value. All four are sequentially consistent, so either the writer sees the waiter and wakes
/// it, or the waiter sees the value. What the writer wrote before advance_to() is visible to whoever has seen the
/// value.
class SequenceCounter {
 public:
  void advance_to(std::uint32_t value);
  /// Whether `value` has been reached; values may wrap around.
  bool reached(std::uint32_t value) const;
  /// Blocks until `value` is reached. Spins `spins` times first, then sleeps; in between it calls `check_peer`,
  /// which throws when waiting has no sense any more. Returns false at the deadline.
  bool wait_for(std::uint32_t value, int spins, Deadline deadline, const std::function<void()>& check_peer);

 private:
  std::atomic<std::uint32_t> value_;
  std::atomic<std::uint32_t> waiters_;
};

}  // namespace tutti::comm
