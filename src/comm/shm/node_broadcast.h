#pragma once
// What the first rank of a node has learned, handed to the others of its node.
//
// It goes through the first rank's slots, chunk by chunk. Chunk number n of a channel uses slot n % 2:
//   published(n)   it is in its slot. Only the first rank says so.
//   taken(n)        this rank has copied it. A slot is filled again only when all ranks have taken what was in it.
// All ranks run the same messages in the same order, as long on all of them.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "comm/shm/node_state.h"

namespace tutti::comm {

/// One thread at a time.
class NodeBroadcast {
 public:
  static constexpr std::size_t slot_bytes = std::size_t{16} << 10;
  static constexpr std::uint32_t slots = 2;

  /// `memory` of slots * slot_bytes for each rank.
  NodeBroadcast(std::shared_ptr<NodeState> node, SharedMemory memory)
      : node_(std::move(node)), memory_(std::move(memory)) {}

  /// The first rank's `bytes` become everyone's. The first rank waits only for slots that the others have not taken;
  /// the others block until all is there. Throws TransferError.
  void run(std::span<std::byte> bytes, const OperationDeadline& wait);

 private:
  void publish(std::span<const std::byte> chunk, const OperationDeadline& wait);
  void consume(std::span<std::byte> chunk, const OperationDeadline& wait);
  std::byte* slot() const { return memory_.of(0) + (last_ % slots) * slot_bytes; }

  std::shared_ptr<NodeState> node_;
  SharedMemory memory_;
  std::uint32_t last_ = 0;  // chunk
};

}  // namespace tutti::comm
