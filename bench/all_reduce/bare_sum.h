#pragma once
// A sum limited by memory bandwidth alone.
#include <cstdint>

namespace tutti::bench {

/// Returns the time of one call in microseconds. In a call one thread for each rank sums a slice of all buffers in
/// place; there is one buffer of `bytes` for each rank. Every byte is read once and written once, as in every
/// all-reduce, and no thread waits for another. A lower limit: small buffers stay in a core's cache; buffers of ranks
/// cannot.
double time_of_bare_sum(std::int64_t bytes, int ranks, int calls);

}  // namespace tutti::bench
