#include "comm/shared/sum.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "comm/sums/combine.h"
#include "comm/sums/slices.h"

namespace tutti::comm {
namespace {

/// Both caches of a core hold this much of two versions and a result.
constexpr std::size_t bytes_at_once = std::size_t{128} << 10;

}  // namespace

SharedSum::SharedSum(std::shared_ptr<SharedNode> node, Operation operation, SharedPlace place, const at::Tensor& flat,
                     std::uint32_t number, Combination combination)
    : node_(std::move(node)),
      operation_(std::move(operation)),
      place_(std::move(place)),
      dtype_(flat.scalar_type()),
      elements_(static_cast<std::size_t>(flat.numel())),
      number_(number),
      combination_(combination) {
  node_->own().last_call.set(operation_);
  node_->own().sums_started.advance_to(number_);
}

void SharedSum::reduce(double scale) {
  node_->wait_for_all(&SharedRank::sums_started, number_, {operation_});
  combination_.rescale.factor = scale;
  const std::size_t width = c10::elementSize(dtype_);
  const Range slice = slice_of(elements_, width, node_->rank(), node_->size());
  const std::size_t at_once = bytes_at_once / width;
  std::vector<const std::byte*> versions(static_cast<std::size_t>(node_->size()));
  for (std::size_t done = 0; done < slice.length; done += at_once) {
    const std::size_t length = std::min(at_once, slice.length - done);
    const std::size_t offset = (slice.offset + done) * width;
    for (int rank = 0; rank < node_->size(); ++rank) versions[rank] = place_.of(rank) + offset;
    std::byte* result = place_.of(node_->rank()) + offset;
    combine(versions, result, length, dtype_, combination_);
    for (int rank = 0; rank < node_->size(); ++rank) {
      if (rank != node_->rank()) std::memcpy(place_.of(rank) + offset, result, length * width);
    }
  }
  node_->own().sums_reduced.advance_to(number_);
}

void SharedSum::finish() {
  node_->wait_for_all(&SharedRank::sums_reduced, number_, {operation_});
}

std::int64_t SharedSum::bytes_sent() const {
  const std::size_t width = c10::elementSize(dtype_);
  const Range slice = slice_of(elements_, width, node_->rank(), node_->size());
  const std::size_t others = static_cast<std::size_t>(node_->size()) - 1;
  return static_cast<std::int64_t>((elements_ - slice.length + slice.length * others) * width);
}

}  // namespace tutti::comm
