#pragma once
// Sleep until a number in memory changes. The memory may be shared, and another process may change the number.
#include <atomic>
#include <chrono>
#include <cstdint>

namespace tutti::comm {

/// Sleeps while `word` holds `expected`, for at most `max_wait`. Spurious wake-ups are possible.
void futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t expected, std::chrono::nanoseconds max_wait);
/// Wakes all threads of all processes that sleep on `word`.
void futex_wake_all(std::atomic<std::uint32_t>& word);

static_assert(std::atomic<std::uint32_t>::is_always_lock_free, "a lock would not work across processes");

}  // namespace tutti::comm
