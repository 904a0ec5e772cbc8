#include "tutti/detail/train/split_between_processes.h"

#include <ATen/Functions.h>

#include <algorithm>

namespace tutti {

ProcessShare share_of(std::int64_t items, int rank, int size, bool apply_padding) {
  if (size < 1 || rank < 0 || rank >= size || items < 0) {
    std::string why = "split_between_processes: rank " + std::to_string(rank) + " of " + std::to_string(size);
    throw UsageError(why + " has no share of " + std::to_string(items) + " items");
  }
  const auto each = items / size;
  const auto extras = items % size;
  ProcessShare share{.begin = rank * each + std::min<std::int64_t>(rank, extras)};
  share.end = share.begin + each + (rank < extras ? 1 : 0);
  if (apply_padding && extras > 0 && rank >= extras) share.padding = 1;
  return share;
}

namespace detail {

std::int64_t same_items(std::int64_t items, std::int64_t count) {
  if (items == unknown_items || count == unknown_items) return std::max(items, count);
  if (items == count) return items;
  throw UsageError("split_between_processes: the parts have " + std::to_string(items) + " and " +
                   std::to_string(count) + " items: all parts must have the same number of items");
}

std::int64_t Splitting<at::Tensor>::items(const at::Tensor& value) {
  if (value.defined() && value.dim() > 0) return value.size(0);
  throw UsageError("split_between_processes: a tensor without dimensions cannot be split");
}

at::Tensor Splitting<at::Tensor>::take(const at::Tensor& value, const ProcessShare& share) {
  const at::Tensor own = value.narrow(0, share.begin, share.end - share.begin);
  if (share.padding == 0) return own;
  std::vector<std::int64_t> sizes = value.sizes().vec();
  sizes[0] = share.padding;
  return at::cat({own, value.narrow(0, value.size(0) - 1, 1).expand(sizes)});
}

}  // namespace detail

}  // namespace tutti
