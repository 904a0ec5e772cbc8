#include "comm/shared/progress.h"

#include <algorithm>
#include <chrono>

#include "comm/engine/futex.h"
#include "comm/engine/pause.h"

namespace tutti::comm {
namespace {

constexpr auto longest_sleep = std::chrono::milliseconds(20);

}  // namespace

void SharedProgress::advance_to(std::uint32_t value) {
  value_.store(value, std::memory_order_seq_cst);
  if (waiters_.load(std::memory_order_seq_cst) > 0) futex_wake_all(value_);
}

bool SharedProgress::reached(std::uint32_t value) const {
  return static_cast<std::int32_t>(value_.load(std::memory_order_seq_cst) - value) >= 0;
}

bool SharedProgress::wait_for(std::uint32_t value, int spins, Deadline deadline,
                              const std::function<void()>& still_there) {
  for (int spin = 0; spin < spins; ++spin) {
    if (reached(value)) return true;
    pause_briefly();
  }
  waiters_.fetch_add(1, std::memory_order_seq_cst);
  // Lowers the count whichever way this is left.
  const std::unique_ptr<SharedProgress, void (*)(SharedProgress*)> leave(
      this, [](SharedProgress* progress) { progress->waiters_.fetch_sub(1, std::memory_order_seq_cst); });
  while (!reached(value)) {
    const auto left = deadline - Clock::now();
    if (left <= Clock::duration::zero()) return false;
    const std::uint32_t seen = value_.load(std::memory_order_seq_cst);
    if (static_cast<std::int32_t>(seen - value) >= 0) return true;
    futex_wait(value_, seen, std::min<std::chrono::nanoseconds>(left, longest_sleep));
    if (!reached(value)) still_there();
  }
  return true;
}

}  // namespace tutti::comm
