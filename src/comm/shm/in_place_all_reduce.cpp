#include "comm/shm/in_place_all_reduce.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "comm/reduction/partition.h"
#include "comm/reduction/reduce_tree.h"

namespace tutti::comm {
namespace {

/// The L1 and L2 caches of a core hold blocks of this size of two contributions and the result.
constexpr std::size_t block_bytes = std::size_t{128} << 10;

}  // namespace

InPlaceAllReduce::InPlaceAllReduce(std::shared_ptr<NodeState> node, Operation operation, ShmLocation location,
                                   const at::Tensor& flat, std::uint32_t number)
    : node_(std::move(node)),
      operation_(std::move(operation)),
      location_(std::move(location)),
      dtype_(flat.scalar_type()),
      elements_(static_cast<std::size_t>(flat.numel())),
      number_(number) {
  node_->local().last_operation.set(operation_);
  node_->local().reductions_started.advance_to(number_);
}

void InPlaceAllReduce::finish_reduce_scatter(double scale) {
  node_->wait_for_all(&RankState::reductions_started, number_, {operation_});
  const Reduction reduction{.factor = scale};
  const std::size_t width = c10::elementSize(dtype_);
  const Range shard = shard_of(elements_, width, node_->rank(), node_->size());
  const std::size_t block_length = block_bytes / width;
  std::vector<const std::byte*> contributions(static_cast<std::size_t>(node_->size()));
  for (std::size_t done = 0; done < shard.length; done += block_length) {
    const std::size_t length = std::min(block_length, shard.length - done);
    const std::size_t offset = (shard.offset + done) * width;
    for (int rank = 0; rank < node_->size(); ++rank) contributions[rank] = location_.of(rank) + offset;
    std::byte* result = location_.of(node_->rank()) + offset;
    reduce_tree(contributions, result, length, dtype_, reduction);
    for (int rank = 0; rank < node_->size(); ++rank) {
      if (rank != node_->rank()) std::memcpy(location_.of(rank) + offset, result, length * width);
    }
  }
  node_->local().reductions_finished.advance_to(number_);
}

void InPlaceAllReduce::wait() {
  node_->wait_for_all(&RankState::reductions_finished, number_, {operation_});
}

std::int64_t InPlaceAllReduce::bytes_sent() const {
  const std::size_t width = c10::elementSize(dtype_);
  const Range shard = shard_of(elements_, width, node_->rank(), node_->size());
  const std::size_t peers = static_cast<std::size_t>(node_->size()) - 1;
  return static_cast<std::int64_t>((elements_ - shard.length + shard.length * peers) * width);
}

}  // namespace tutti::comm
