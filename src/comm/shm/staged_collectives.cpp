#include "comm/shm/staged_collectives.h"

#include <algorithm>
#include <cstring>

#include "comm/reduction/partition.h"

namespace tutti::comm {
namespace {

// Up to this number of ranks, every rank reduces whole chunks. That reads more memory than reducing shards, but no rank
// waits for the results of another rank.
constexpr int max_ranks_without_shards = 3;

std::byte* memory_of(const at::Tensor& tensor) {
  return static_cast<std::byte*>(tensor.data_ptr());
}

/// The size of each of `parts` equal parts of a slot, in whole cache lines.
std::size_t slot_part_bytes(int parts) {
  return StagedCollectives::slot_bytes / static_cast<std::size_t>(parts) / 64 * 64;
}

}  // namespace

template <typename Fill, typename Use>
void StagedCollectives::run(std::size_t bytes, std::size_t chunk_bytes, const OperationDeadline& wait, const Fill& fill,
                            const Use& use) {
  const std::uint32_t first = last_ + 1;
  const auto chunks = static_cast<std::uint32_t>((bytes + chunk_bytes - 1) / chunk_bytes);
  last_ += chunks;
  const auto chunk_at = [&](std::uint32_t index) {
    const std::size_t offset = index * chunk_bytes;
    return Chunk{.offset = offset, .length = std::min(chunk_bytes, bytes - offset), .number = first + index};
  };
  const auto post = [&](std::uint32_t index) {
    const Chunk chunk = chunk_at(index);
    node_->wait_for_all(&RankState::chunks_read, chunk.number - slots, wait);
    fill(chunk, slot(node_->rank(), chunk.number));
    node_->local().chunks_posted.advance_to(chunk.number);
  };
  if (chunks > 0) post(0);
  for (std::uint32_t index = 0; index < chunks; ++index) {
    if (index + 1 < chunks) post(index + 1);
    const Chunk chunk = chunk_at(index);
    node_->wait_for_all(&RankState::chunks_posted, chunk.number, wait);
    use(chunk);
    node_->local().chunks_read.advance_to(chunk.number);
  }
}

void StagedCollectives::all_reduce(const at::Tensor& flat, const Reduction& reduction, const OperationDeadline& wait) {
  std::byte* const memory = memory_of(flat);
  const std::size_t width = flat.element_size();
  const auto fill = [&](const Chunk& chunk, std::byte* to) { std::memcpy(to, memory + chunk.offset, chunk.length); };
  const auto use = [&](const Chunk& chunk) {
    std::byte* const to = memory + chunk.offset;
    if (node_->size() > max_ranks_without_shards) {
      reduce_shards(chunk, flat.scalar_type(), reduction, to, wait);
      return;
    }
    std::vector<const std::byte*> contributions;
    for (int rank = 0; rank < node_->size(); ++rank) {
      contributions.push_back(rank == node_->rank() ? to : slot(rank, chunk.number));
    }
    reduce_tree(contributions, to, chunk.length / width, flat.scalar_type(), reduction);
  };
  run(flat.nbytes(), slot_bytes, wait, fill, use);
}

void StagedCollectives::reduce_shards(const Chunk& chunk, at::ScalarType dtype, const Reduction& reduction,
                                      std::byte* to, const OperationDeadline& wait) {
  const std::size_t width = c10::elementSize(dtype);
  const std::size_t elements = chunk.length / width;
  const auto shard_of_rank = [&](int rank) { return shard_of(elements, width, rank, node_->size()); };
  const Range own_shard = shard_of_rank(node_->rank());
  std::vector<const std::byte*> contributions;
  for (int rank = 0; rank < node_->size(); ++rank)
    contributions.push_back(slot(rank, chunk.number) + own_shard.offset * width);
  // No other rank reads this shard of this rank's slot before chunks_reduced is advanced.
  reduce_tree(contributions, slot(node_->rank(), chunk.number) + own_shard.offset * width, own_shard.length, dtype,
              reduction);
  node_->local().chunks_reduced.advance_to(chunk.number);
  node_->wait_for_all(&RankState::chunks_reduced, chunk.number, wait);
  for (int rank = 0; rank < node_->size(); ++rank) {
    const Range shard = shard_of_rank(rank);
    std::memcpy(to + shard.offset * width, slot(rank, chunk.number) + shard.offset * width, shard.length * width);
  }
}

void StagedCollectives::all_gather(const at::Tensor& output, const at::Tensor& input, const OperationDeadline& wait) {
  const std::byte* const from = memory_of(input);
  std::byte* const to = memory_of(output);
  const std::size_t bytes = input.nbytes();
  const auto fill = [&](const Chunk& chunk, std::byte* slot) { std::memcpy(slot, from + chunk.offset, chunk.length); };
  const auto use = [&](const Chunk& chunk) {
    for (int rank = 0; rank < node_->size(); ++rank) {
      std::memcpy(to + bytes * static_cast<std::size_t>(rank) + chunk.offset, slot(rank, chunk.number), chunk.length);
    }
  };
  run(bytes, slot_bytes, wait, fill, use);
}

void StagedCollectives::reduce_scatter(const at::Tensor& output, const at::Tensor& input, const Reduction& reduction,
                                       const OperationDeadline& wait) {
  std::byte* const to = memory_of(output);
  const std::size_t bytes = output.nbytes();
  const std::size_t part = slot_part_bytes(node_->size());
  const std::byte* const from = memory_of(input);
  const auto fill = [&](const Chunk& chunk, std::byte* slot) {
    for (std::size_t rank = 0; rank < static_cast<std::size_t>(node_->size()); ++rank) {
      std::memcpy(slot + rank * part, from + rank * bytes + chunk.offset, chunk.length);
    }
  };
  const auto use = [&](const Chunk& chunk) {
    std::vector<const std::byte*> contributions;
    for (int rank = 0; rank < node_->size(); ++rank) {
      contributions.push_back(slot(rank, chunk.number) + static_cast<std::size_t>(node_->rank()) * part);
    }
    reduce_tree(contributions, to + chunk.offset, chunk.length / output.element_size(), output.scalar_type(),
                reduction);
  };
  run(bytes, part, wait, fill, use);
}

void StagedCollectives::broadcast(const at::Tensor& tensor, int root, const OperationDeadline& wait) {
  std::byte* const memory = memory_of(tensor);
  const bool sends = node_->rank() == root;
  const auto fill = [&](const Chunk& chunk, std::byte* slot) {
    if (sends) std::memcpy(slot, memory + chunk.offset, chunk.length);
  };
  const auto use = [&](const Chunk& chunk) {
    if (!sends) std::memcpy(memory + chunk.offset, slot(root, chunk.number), chunk.length);
  };
  run(tensor.nbytes(), slot_bytes, wait, fill, use);
}

void StagedCollectives::all_to_all_v(const std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& inputs,
                                     std::size_t longest, const OperationDeadline& wait) {
  const std::size_t part = slot_part_bytes(node_->size());
  // The number of bytes of a tensor in a chunk.
  const auto bytes_in = [](const at::Tensor& tensor, const Chunk& chunk) {
    const std::size_t bytes = tensor.nbytes();
    return bytes > chunk.offset ? std::min(chunk.length, bytes - chunk.offset) : 0;
  };
  const auto fill = [&](const Chunk& chunk, std::byte* slot) {
    for (std::size_t rank = 0; rank < inputs.size(); ++rank) {
      const std::size_t bytes = bytes_in(inputs[rank], chunk);
      if (bytes > 0) std::memcpy(slot + rank * part, memory_of(inputs[rank]) + chunk.offset, bytes);
    }
  };
  const auto use = [&](const Chunk& chunk) {
    const std::size_t part_offset = static_cast<std::size_t>(node_->rank()) * part;
    for (std::size_t rank = 0; rank < outputs.size(); ++rank) {
      const std::size_t bytes = bytes_in(outputs[rank], chunk);
      if (bytes == 0) continue;
      std::memcpy(memory_of(outputs[rank]) + chunk.offset, slot(static_cast<int>(rank), chunk.number) + part_offset,
                  bytes);
    }
  };
  run(longest, part, wait, fill, use);
}

}  // namespace tutti::comm
