#pragma once
// The broadcast of small data from the node leader to the other ranks of its node.
//
// The data is copied through the leader's slots, chunk by chunk. Chunk number n of a communicator uses slot n % 2:
//   published = n   the chunk is in its slot. Only the leader sets this counter.
//   consumed = n    this rank has copied the chunk. The leader fills a slot again only when all ranks have consumed it.
// All ranks must run the same broadcasts in the same order, with the same lengths.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "comm/shm/node_state.h"

namespace tutti::comm {

/// May be used by one thread at a time.
class NodeBroadcast {
 public:
  static constexpr std::size_t slot_bytes = std::size_t{16} << 10;
  static constexpr std::uint32_t slots = 2;

  /// `memory` holds slots * slot_bytes for each rank.
  NodeBroadcast(std::shared_ptr<NodeState> node, SharedMemory memory)
      : node_(std::move(node)), memory_(std::move(memory)) {}

  /// Copies the leader's `bytes` to all ranks. The leader waits only for slots that other ranks have not consumed. The
  /// other ranks block until they have received all bytes. Throws TransferError.
  void run(std::span<std::byte> bytes, const OperationDeadline& wait);

 private:
  std::byte* slot() const { return memory_.of(0) + (last_ % slots) * slot_bytes; }

  std::shared_ptr<NodeState> node_;
  SharedMemory memory_;
  std::uint32_t last_ = 0;  // number of the last chunk
};

}  // namespace tutti::comm
