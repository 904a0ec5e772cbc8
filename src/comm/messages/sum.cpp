#include "comm/messages/sum.h"

namespace tutti::comm {
Block block_of(const at::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.data_ptr()), tensor.nbytes(), std::make_shared<at::Tensor>(tensor)};
}

VersionCollector::VersionCollector(Transport& transport, Scratch& scratch, const Operation& operation,
                                   const Block& mine)
    : mine_(mine), rank_(transport.rank()), versions_(static_cast<std::size_t>(transport.size())) {
  for (int peer = 0; peer < transport.size(); ++peer) {
    auto& version = versions_[static_cast<std::size_t>(peer)];
    version = peer == rank_ ? mine : scratch.take(mine.size);
    if (peer == rank_) continue;
    receives_.push_back(transport.post_receive(peer, {operation.number, Phase::versions}, version));
  }
}

void VersionCollector::combine_into(const Block& result, at::ScalarType dtype, const Combination& combination,
                                    Deadline deadline) {
  wait_all(receives_, deadline);
  std::vector<const std::byte*> memory;
  for (const auto& version : versions_) memory.push_back(version.data);
  combine(memory, result.data, result.size / c10::elementSize(dtype), dtype, combination);
  versions_.clear();
}

// The result of a slice lands in the memory that its version is sent from. That is safe: its owner sends the result
// only after the version has arrived there.
MessageSum::MessageSum(std::shared_ptr<Transport> transport, Scratch& scratch, Operation operation,
                       const at::Tensor& flat, Combination combination)
    : transport_(std::move(transport)),
      operation_(std::move(operation)),
      combination_(combination),
      dtype_(flat.scalar_type()) {
  const Block whole = block_of(flat);
  const std::size_t width = flat.element_size();
  const auto elements = static_cast<std::size_t>(flat.numel());
  const int rank = transport_->rank();
  const int size = transport_->size();
  const auto pieces_of_rank = [&](int owner) {
    std::vector<Block> blocks;
    for (const auto& piece : pieces_of(slice_of(elements, width, owner, size), width)) {
      blocks.push_back(whole.part(piece.offset * width, piece.length * width));
    }
    return blocks;
  };

  for (auto& block : pieces_of_rank(rank)) {
    mine_.push_back({block, VersionCollector(*transport_, scratch, operation_, block)});
  }
  for (int step = 1; step < size; ++step) {
    const int peer = (rank + step) % size;
    for (const auto& block : pieces_of_rank(peer)) {
      incoming_.push_back(transport_->post_receive(peer, {operation_.number, Phase::results}, block));
    }
  }
  for (int step = 1; step < size; ++step) {
    const int peer = (rank + step) % size;
    for (const auto& block : pieces_of_rank(peer)) {
      send(peer, Phase::versions, block);
    }
  }
}

void MessageSum::send(int peer, Phase phase, const Block& block) {
  outgoing_.push_back(transport_->post_send(peer, {operation_.number, phase}, block));
  bytes_sent_ += static_cast<std::int64_t>(block.size);
}

void MessageSum::reduce(double scale) {
  combination_.rescale.factor = scale;
  const auto deadline = operation_.deadline();
  for (auto& piece : mine_) {
    piece.versions.combine_into(piece.block, dtype_, combination_, deadline);
    for (int step = 1; step < transport_->size(); ++step) {
      const int peer = (transport_->rank() + step) % transport_->size();
      send(peer, Phase::results, piece.block);
    }
  }
  mine_.clear();
}

void MessageSum::finish() {
  const auto deadline = operation_.deadline();
  wait_all(incoming_, deadline);
  wait_all(outgoing_, deadline);
}

}  // namespace tutti::comm
