#include "comm/shm/node_broadcast.h"

#include <algorithm>
#include <cstring>

namespace tutti::comm {

void NodeBroadcast::run(std::span<std::byte> bytes, const OperationDeadline& wait) {
  while (!bytes.empty()) {
    const auto chunk = bytes.first(std::min(bytes.size(), slot_bytes));
    bytes = bytes.subspan(chunk.size());
    ++last_;
    if (node_->rank() == 0) {
      node_->local().consumed.advance_to(last_ - 1);  // the leader waits for the other ranks only
      node_->wait_for_all(&RankState::consumed, last_ - slots, wait);
      std::memcpy(slot(), chunk.data(), chunk.size());
      node_->local().published.advance_to(last_);
    } else {
      node_->wait_for_leader(&RankState::published, last_, wait);
      std::memcpy(chunk.data(), slot(), chunk.size());
      node_->local().consumed.advance_to(last_);
    }
  }
}

}  // namespace tutti::comm
