#pragma once
// Sleeping until a number in memory changes, also by the hand of another process.
#include <atomic>
#include <chrono>
#include <cstdint>

namespace tutti::comm {

/// Sleeps while `word` holds `expected`, at most `max_wait`; it may wake earlier.
void futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t expected, std::chrono::nanoseconds max_wait);
void futex_wake_all(std::atomic<std::uint32_t>& word);

static_assert(std::atomic<std::uint32_t>::is_always_lock_free, "a lock would not work across processes");

}  // namespace tutti::comm
