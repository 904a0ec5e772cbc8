#include "comm/shm/small_all_gather.h"

#include <cstring>
#include <utility>

namespace tutti::comm {

ShmAllGather::ShmAllGather(std::shared_ptr<NodeState> node, Operation operation, std::span<const std::byte> input,
                           std::uint32_t number)
    : node_(std::move(node)), operation_(std::move(operation)), length_(input.size()), number_(number) {
  node_->local().last_operation.set(operation_);
  node_->wait_for_all(&RankState::all_gathers_read, number_ - payload_slots, {operation_});
  std::memcpy(node_->local().payload_slot[number_ % payload_slots], input.data(), input.size());
  all_.resize(length_ * static_cast<std::size_t>(node_->size()));
  std::memcpy(all_.data() + length_ * static_cast<std::size_t>(node_->rank()), input.data(), input.size());
  node_->local().all_gathers_posted.advance_to(number_);
}

bool ShmAllGather::is_ready() const {
  for (int rank = 0; rank < node_->size(); ++rank) {
    if (!node_->of(rank).all_gathers_posted.reached(number_)) return false;
  }
  return true;
}

std::span<const std::byte> ShmAllGather::wait() {
  try {
    node_->wait_for_all(&RankState::all_gathers_posted, number_, {operation_});
  } catch (const TransferError&) {
    // Another rank may have seen all contributions and decided that the all-gather completed.
    if (!node_->decide_all_gather(number_, false)) throw;
  }
  if (!node_->decide_all_gather(number_, true)) {
    throw TransferError(TransferError::Kind::connection_closed, node_->closed_ranks(), "a peer aborted the operation");
  }
  for (int rank = 0; rank < node_->size(); ++rank) {
    if (rank == node_->rank()) continue;
    std::memcpy(all_.data() + length_ * static_cast<std::size_t>(rank),
                node_->of(rank).payload_slot[number_ % payload_slots], length_);
  }
  node_->local().all_gathers_read.advance_to(number_);
  return all_;
}

}  // namespace tutti::comm
