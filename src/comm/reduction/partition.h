#pragma once
// The partition of a tensor into shards, one for each rank, and of a shard into chunks.
#include <cstddef>
#include <vector>

namespace tutti::comm {

/// A range of elements.
struct Range {
  std::size_t offset = 0;
  std::size_t length = 0;
};

/// The shard of `elements` that `rank` of `size` ranks owns. `width` is the size of an element in bytes. Shards are
/// equal and a whole number of cache lines; the last ones may be shorter or empty.
Range shard_of(std::size_t elements, std::size_t width, int rank, int size);

/// The chunks of a shard: one chunk is reduced while the next is received.
std::vector<Range> chunks_of(Range shard, std::size_t width);

}  // namespace tutti::comm
