#include "comm/reduction/partition.h"

#include <algorithm>

namespace tutti::comm {
namespace {

constexpr std::size_t cache_line = 64;
constexpr std::size_t chunk_bytes = std::size_t{2} << 20;

}  // namespace

Range shard_of(std::size_t elements, std::size_t width, int rank, int size) {
  const std::size_t line = std::max<std::size_t>(1, cache_line / width);
  const auto ranks = static_cast<std::size_t>(size);
  const std::size_t shard_elements = ((elements + ranks - 1) / ranks + line - 1) / line * line;
  const std::size_t begin = std::min(elements, shard_elements * static_cast<std::size_t>(rank));
  return {begin, std::min(shard_elements, elements - begin)};
}

std::vector<Range> chunks_of(Range shard, std::size_t width) {
  const std::size_t chunk_elements = chunk_bytes / width;
  std::vector<Range> chunks;
  for (std::size_t done = 0; done < shard.length; done += chunk_elements) {
    chunks.push_back({shard.offset + done, std::min(chunk_elements, shard.length - done)});
  }
  return chunks;
}

}  // namespace tutti::comm
