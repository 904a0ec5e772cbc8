#include "comm/shm/sequence_counter.h"

#include <algorithm>
#include <chrono>

#include "comm/os/cpu_pause.h"
#include "comm/os/futex.h"

namespace tutti::comm {
namespace {

constexpr auto max_sleep = std::chrono::milliseconds(20);

}  // namespace

void SequenceCounter::advance_to(std::uint32_t value) {
  value_.store(value, std::memory_order_seq_cst);
  if (waiters_.load(std::memory_order_seq_cst) > 0) futex_wake_all(value_);
}

bool SequenceCounter::reached(std::uint32_t value) const {
  return static_cast<std::int32_t>(value_.load(std::memory_order_seq_cst) - value) >= 0;
}

bool SequenceCounter::wait_for(std::uint32_t value, int spins, Deadline deadline,
                               const std::function<void()>& check_peer) {
  for (int spin = 0; spin < spins; ++spin) {
    if (reached(value)) return true;
    cpu_pause();
  }
  waiters_.fetch_add(1, std::memory_order_seq_cst);
  // Decrements the count on return and on exceptions.
  const std::unique_ptr<SequenceCounter, void (*)(SequenceCounter*)> unregister(
      this, [](SequenceCounter* counter) { counter->waiters_.fetch_sub(1, std::memory_order_seq_cst); });
  for (;;) {
    const std::uint32_t seen = value_.load(std::memory_order_seq_cst);
    if (static_cast<std::int32_t>(seen - value) >= 0) return true;
    const auto remaining = deadline - Clock::now();
    if (remaining <= Clock::duration::zero()) return false;
    futex_wait(value_, seen, std::min<std::chrono::nanoseconds>(remaining, max_sleep));
    if (!reached(value)) check_peer();
  }
}

}  // namespace tutti::comm
