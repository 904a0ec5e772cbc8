#pragma once
// Collectives inside a node on tensors in any memory: each rank copies its data into staging buffers, chunk by chunk,
// and the other ranks read it from there.
//
// Chunk number n of a communicator uses slot n % 2 of every rank:
//   chunks_posted = n    this rank's part of the chunk is in its slot.
//   chunks_reduced = n   the reduced shard of this rank is in its slot (all_reduce of more than 3 ranks only).
//   chunks_read = n      this rank does not read any rank's slot of chunk n any more. A slot is filled again only when
//                        all ranks have read it.
// A rank fills the slot of chunk n + 1 before it uses chunk n, so that it copies while other ranks enter the call. All
// ranks run the same chunks in the same order, for every collective. Slots are small enough to stay in cache.
#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "comm/reduction/reduce_tree.h"
#include "comm/shm/node_state.h"

namespace tutti::comm {

/// May be used by one thread at a time. The methods block and throw TransferError.
class StagedCollectives {
 public:
  static constexpr std::size_t slot_bytes = std::size_t{256} << 10;
  static constexpr std::uint32_t slots = 2;

  /// `memory` holds slots * slot_bytes for each rank.
  StagedCollectives(std::shared_ptr<NodeState> node, SharedMemory memory)
      : node_(std::move(node)), memory_(std::move(memory)) {}

  void all_reduce(const at::Tensor& flat, const Reduction& reduction, const OperationDeadline& wait);
  void all_gather(const at::Tensor& output, const at::Tensor& input, const OperationDeadline& wait);
  void reduce_scatter(const at::Tensor& output, const at::Tensor& input, const Reduction& reduction,
                      const OperationDeadline& wait);
  void broadcast(const at::Tensor& tensor, int root, const OperationDeadline& wait);
  /// See Backend::all_to_all_v.
  void all_to_all_v(const std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& inputs, std::size_t longest,
                    const OperationDeadline& wait);

 private:
  struct Chunk {
    std::size_t offset = 0;  // in bytes
    std::size_t length = 0;
    std::uint32_t number = 0;
  };

  /// Processes `bytes` in chunks of at most `chunk_bytes`: `fill(chunk, slot)` copies this rank's data into its slot,
  /// and `use(chunk)` reads all ranks' slots.
  template <typename Fill, typename Use>
  void run(std::size_t bytes, std::size_t chunk_bytes, const OperationDeadline& wait, const Fill& fill, const Use& use);

  std::byte* slot(int rank, std::uint32_t number) const { return memory_.of(rank) + (number % slots) * slot_bytes; }
  void reduce_shards(const Chunk& chunk, at::ScalarType dtype, const Reduction& reduction, std::byte* to,
                     const OperationDeadline& wait);

  std::shared_ptr<NodeState> node_;
  SharedMemory memory_;
  std::uint32_t last_ = 0;  // number of the last chunk
};

}  // namespace tutti::comm
