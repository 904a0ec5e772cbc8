#include "comm/shared/stage.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "comm/sums/slices.h"

namespace tutti::comm {
namespace {

// Up to here every rank combines whole chunks by itself: that reads more than slices do, but nobody waits for results.
constexpr int few_ranks = 3;

std::byte* memory_of(const at::Tensor& tensor) {
  return static_cast<std::byte*>(tensor.data_ptr());
}

/// The largest part of a slot that `parts` parts fit into, in whole cache lines.
std::size_t part_of_slot(int parts) {
  return SharedStage::slot_bytes / static_cast<std::size_t>(parts) / 64 * 64;
}

}  // namespace

template <typename Fill, typename Use>
void SharedStage::run(std::size_t bytes, std::size_t at_once, const OperationWait& wait, const Fill& fill,
                      const Use& use) {
  const std::uint32_t first = last_ + 1;
  const auto chunks = static_cast<std::uint32_t>((bytes + at_once - 1) / at_once);
  last_ += chunks;
  const auto chunk_at = [&](std::uint32_t index) {
    const std::size_t offset = index * at_once;
    return Chunk{.offset = offset, .length = std::min(at_once, bytes - offset), .number = first + index};
  };
  const auto post = [&](std::uint32_t index) {
    const Chunk chunk = chunk_at(index);
    node_->wait_for_all(&SharedRank::chunks_read, chunk.number - slots, wait);
    fill(chunk, slot(node_->rank(), chunk.number));
    node_->own().chunks_posted.advance_to(chunk.number);
  };
  if (chunks > 0) post(0);
  for (std::uint32_t index = 0; index < chunks; ++index) {
    if (index + 1 < chunks) post(index + 1);
    const Chunk chunk = chunk_at(index);
    node_->wait_for_all(&SharedRank::chunks_posted, chunk.number, wait);
    use(chunk);
    node_->own().chunks_read.advance_to(chunk.number);
  }
}

void SharedStage::all_reduce(const at::Tensor& flat, const Combination& combination, const OperationWait& wait) {
  std::byte* const memory = memory_of(flat);
  const std::size_t width = flat.element_size();
  const auto fill = [&](const Chunk& chunk, std::byte* to) { std::memcpy(to, memory + chunk.offset, chunk.length); };
  const auto use = [&](const Chunk& chunk) {
    std::byte* const to = memory + chunk.offset;
    if (node_->size() > few_ranks) {
      combine_slices(chunk, flat.scalar_type(), combination, to, wait);
      return;
    }
    std::vector<const std::byte*> versions;
    for (int rank = 0; rank < node_->size(); ++rank) {
      versions.push_back(rank == node_->rank() ? to : slot(rank, chunk.number));
    }
    combine(versions, to, chunk.length / width, flat.scalar_type(), combination);
  };
  run(flat.nbytes(), slot_bytes, wait, fill, use);
}

void SharedStage::combine_slices(const Chunk& chunk, at::ScalarType dtype, const Combination& combination,
                                 std::byte* to, const OperationWait& wait) {
  const std::size_t width = c10::elementSize(dtype);
  const std::size_t elements = chunk.length / width;
  const auto slice_of_rank = [&](int rank) { return slice_of(elements, width, rank, node_->size()); };
  const Range own = slice_of_rank(node_->rank());
  std::vector<const std::byte*> versions;
  for (int rank = 0; rank < node_->size(); ++rank) versions.push_back(slot(rank, chunk.number) + own.offset * width);
  // Nobody else reads this slice of the own slot before it is announced.
  combine(versions, slot(node_->rank(), chunk.number) + own.offset * width, own.length, dtype, combination);
  node_->own().chunks_reduced.advance_to(chunk.number);
  node_->wait_for_all(&SharedRank::chunks_reduced, chunk.number, wait);
  for (int rank = 0; rank < node_->size(); ++rank) {
    const Range slice = slice_of_rank(rank);
    std::memcpy(to + slice.offset * width, slot(rank, chunk.number) + slice.offset * width, slice.length * width);
  }
}

void SharedStage::all_gather(const at::Tensor& output, const at::Tensor& input, const OperationWait& wait) {
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

void SharedStage::reduce_scatter(const at::Tensor& output, const at::Tensor& input, const Combination& combination,
                                 const OperationWait& wait) {
  const std::byte* const from = memory_of(input);
  std::byte* const to = memory_of(output);
  const std::size_t bytes = output.nbytes();
  const std::size_t part = part_of_slot(node_->size());
  const auto fill = [&](const Chunk& chunk, std::byte* slot) {
    for (int rank = 0; rank < node_->size(); ++rank) {
      const auto place = static_cast<std::size_t>(rank);
      std::memcpy(slot + place * part, from + place * bytes + chunk.offset, chunk.length);
    }
  };
  const auto use = [&](const Chunk& chunk) {
    std::vector<const std::byte*> versions;
    for (int rank = 0; rank < node_->size(); ++rank) {
      versions.push_back(slot(rank, chunk.number) + static_cast<std::size_t>(node_->rank()) * part);
    }
    combine(versions, to + chunk.offset, chunk.length / output.element_size(), output.scalar_type(), combination);
  };
  run(bytes, part, wait, fill, use);
}

void SharedStage::all_to_all(const at::Tensor& output, const at::Tensor& input, const OperationWait& wait) {
  const std::byte* const from = memory_of(input);
  std::byte* const to = memory_of(output);
  const std::size_t bytes = output.nbytes() / static_cast<std::size_t>(node_->size());
  const std::size_t part = part_of_slot(node_->size());
  const auto fill = [&](const Chunk& chunk, std::byte* slot) {
    for (int rank = 0; rank < node_->size(); ++rank) {
      const auto place = static_cast<std::size_t>(rank);
      std::memcpy(slot + place * part, from + place * bytes + chunk.offset, chunk.length);
    }
  };
  const auto use = [&](const Chunk& chunk) {
    for (int rank = 0; rank < node_->size(); ++rank) {
      std::memcpy(to + static_cast<std::size_t>(rank) * bytes + chunk.offset,
                  slot(rank, chunk.number) + static_cast<std::size_t>(node_->rank()) * part, chunk.length);
    }
  };
  run(bytes, part, wait, fill, use);
}

void SharedStage::broadcast(const at::Tensor& tensor, int root, const OperationWait& wait) {
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

void SharedStage::exchange_parts(const std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& inputs,
                                 std::size_t longest, const OperationWait& wait) {
  const std::size_t part = part_of_slot(node_->size());
  // How much of a tensor is in a chunk.
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
    const std::size_t here = static_cast<std::size_t>(node_->rank()) * part;
    for (std::size_t rank = 0; rank < outputs.size(); ++rank) {
      const std::size_t bytes = bytes_in(outputs[rank], chunk);
      if (bytes == 0) continue;
      std::memcpy(memory_of(outputs[rank]) + chunk.offset, slot(static_cast<int>(rank), chunk.number) + here, bytes);
    }
  };
  run(longest, part, wait, fill, use);
}

}  // namespace tutti::comm
