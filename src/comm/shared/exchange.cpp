#include "comm/shared/exchange.h"

#include <cstring>
#include <utility>

namespace tutti::comm {

SharedExchange::SharedExchange(std::shared_ptr<SharedNode> node, Operation operation, std::span<const std::byte> mine,
                               std::uint32_t number)
    : node_(std::move(node)), operation_(std::move(operation)), length_(mine.size()), number_(number) {
  node_->own().last_call.set(operation_);
  if (number_ > mailboxes) node_->wait_for_all(&SharedRank::exchanges_read, number_ - mailboxes, {operation_});
  std::memcpy(node_->own().mailbox[number_ % mailboxes], mine.data(), mine.size());
  node_->own().exchanges_posted.advance_to(number_);
}

bool SharedExchange::ready() const {
  for (int rank = 0; rank < node_->size(); ++rank) {
    if (!node_->of(rank).exchanges_posted.reached(number_)) return false;
  }
  return true;
}

std::span<const std::byte> SharedExchange::finish() {
  try {
    node_->wait_for_all(&SharedRank::exchanges_posted, number_, {operation_});
  } catch (const TransferError&) {
    // Another rank may have seen all come, and goes on.
    if (!node_->settle_exchange(number_, false)) throw;
  }
  if (!node_->settle_exchange(number_, true)) {
    throw TransferError(TransferError::Kind::left, node_->who_gave_up(), "it gave the operation up");
  }
  all_.resize(length_ * static_cast<std::size_t>(node_->size()));
  for (int rank = 0; rank < node_->size(); ++rank) {
    std::memcpy(all_.data() + length_ * static_cast<std::size_t>(rank), node_->of(rank).mailbox[number_ % mailboxes],
                length_);
  }
  node_->own().exchanges_read.advance_to(number_);
  return all_;
}

}  // namespace tutti::comm
