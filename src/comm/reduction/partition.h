#pragma once
// Who owns which part of a sum.
#include <cstddef>
#include <vector>

namespace tutti::comm {

struct Range {
  std::size_t offset = 0;
  std::size_t length = 0;
};

/// The slice of `elements` that `rank` owns: equal shares, whole cache lines, the last ones short or empty.
Range shard_of(std::size_t elements, std::size_t width, int rank, int size);

/// Whether `rank` can own some of a sum of `bytes` or less.
bool may_own_elements(std::size_t bytes, int rank);

/// A slice in pieces: while one is combined the next one arrives.
std::vector<Range> chunks_of(Range shard, std::size_t width);

}  // namespace tutti::comm
