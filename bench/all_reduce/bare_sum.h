#pragma once
// What the memory allows.
#include <cstdint>

namespace tutti::bench {

/// The time of one call, in microseconds, in which as many threads as there are ranks sum as many buffers of `bytes` in
/// place, each thread a slice of all buffers: every byte is read once and written once, as every all-reduce must, and
/// nobody waits for anybody. A lower limit; small buffers stay in a core's own cache, which those of ranks cannot.
double time_of_bare_sum(std::int64_t bytes, int ranks, int calls);

}  // namespace tutti::bench
