#include "comm/shared/hand_out.h"

#include <algorithm>
#include <cstring>

namespace tutti::comm {

void SharedHandOut::run(std::span<std::byte> bytes, const OperationWait& wait) {
  while (!bytes.empty()) {
    const auto chunk = bytes.first(std::min(bytes.size(), slot_bytes));
    bytes = bytes.subspan(chunk.size());
    ++last_;
    if (node_->rank() == 0) {
      hand_out(chunk, wait);
    } else {
      take(chunk, wait);
    }
  }
}

void SharedHandOut::hand_out(std::span<const std::byte> chunk, const OperationWait& wait) {
  node_->own().taken.advance_to(last_ - 1);  // it waits for the others only
  node_->wait_for_all(&SharedRank::taken, last_ - slots, wait);
  std::memcpy(slot(), chunk.data(), chunk.size());
  node_->own().handed_out.advance_to(last_);
}

void SharedHandOut::take(std::span<std::byte> chunk, const OperationWait& wait) {
  node_->wait_for_first(&SharedRank::handed_out, last_, wait);
  std::memcpy(chunk.data(), slot(), chunk.size());
  node_->own().taken.advance_to(last_);
}

}  // namespace tutti::comm
