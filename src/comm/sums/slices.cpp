#include "comm/sums/slices.h"

#include <algorithm>

namespace tutti::comm {
namespace {

constexpr std::size_t cache_line = 64;
constexpr std::size_t piece_bytes = std::size_t{2} << 20;

}  // namespace

Range slice_of(std::size_t elements, std::size_t width, int rank, int size) {
  const std::size_t line = std::max<std::size_t>(1, cache_line / width);
  const auto ranks = static_cast<std::size_t>(size);
  const std::size_t share = ((elements + ranks - 1) / ranks + line - 1) / line * line;
  const std::size_t begin = std::min(elements, share * static_cast<std::size_t>(rank));
  return {begin, std::min(share, elements - begin)};
}

bool may_own_some(std::size_t bytes, int rank) {
  return bytes > cache_line * static_cast<std::size_t>(rank);
}

std::vector<Range> pieces_of(Range slice, std::size_t width) {
  const std::size_t at_most = piece_bytes / width;
  std::vector<Range> pieces;
  for (std::size_t done = 0; done < slice.length; done += at_most) {
    pieces.push_back({slice.offset + done, std::min(at_most, slice.length - done)});
  }
  return pieces;
}

}  // namespace tutti::comm
