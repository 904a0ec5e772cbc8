#include "comm/messages/sum.h"

#include <utility>

namespace tutti::comm {
namespace {

std::span<float> floats(const Block& block) {
  return {reinterpret_cast<float*>(block.data), block.size / sizeof(float)};
}

std::span<std::byte> bytes(const Block& block) {
  return {block.data, block.size};
}

/// Memory for `values` as they travel.
Block take_for_wire(Scratch& scratch, const Block& values, const WireCodec& codec) {
  return scratch.take(codec.encoded_bytes(values.size / sizeof(float)));
}

}  // namespace

Block block_of(const at::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.data_ptr()), tensor.nbytes(), std::make_shared<at::Tensor>(tensor)};
}

VersionCollector::VersionCollector(Transport& transport, Scratch& scratch, const Operation& operation,
                                   const Block& mine, MaybeCodec codec)
    : scratch_(&scratch),
      mine_(mine),
      rank_(transport.rank()),
      codec_(std::move(codec)),
      versions_(static_cast<std::size_t>(transport.size())) {
  for (int peer = 0; peer < transport.size(); ++peer) {
    auto& version = versions_[static_cast<std::size_t>(peer)];
    version = peer == rank_ ? mine : codec_ ? take_for_wire(scratch, mine, *codec_) : scratch.take(mine.size);
    if (peer == rank_) continue;
    receives_.push_back(transport.post_receive(peer, {operation.number, Phase::versions}, version));
  }
}

void VersionCollector::combine_into(const Block& result, at::ScalarType dtype, const Combination& combination,
                                    Deadline deadline) {
  wait_all(receives_, deadline);
  std::vector<const std::byte*> memory;
  for (std::size_t peer = 0; peer < versions_.size(); ++peer) {
    Block& version = versions_[peer];
    if (codec_ && static_cast<int>(peer) != rank_) {
      const Block decoded = scratch_->take(mine_.size);
      codec_->decode(bytes(version), floats(decoded));
      version = decoded;
    }
    memory.push_back(version.data);
  }
  combine(memory, result.data, result.size / c10::elementSize(dtype), dtype, combination);
  versions_.clear();
}

MessageSum::MessageSum(std::shared_ptr<Transport> transport, Scratch& scratch, Operation operation,
                       const at::Tensor& flat, Combination combination, MaybeCodec codec)
    : transport_(std::move(transport)),
      scratch_(scratch),
      operation_(std::move(operation)),
      combination_(combination),
      codec_(std::move(codec)),
      dtype_(flat.scalar_type()) {
  const Block whole = block_of(flat);
  const std::size_t width = flat.element_size();
  const int rank = transport_->rank();
  const int size = transport_->size();
  for (Piece& piece : pieces_of_rank(whole, width, rank)) {
    VersionCollector versions(*transport_, scratch_, operation_, piece.values, codec_);
    mine_.push_back({std::move(piece), std::move(versions)});
  }
  for (int step = 1; step < size; ++step) {
    const int peer = (rank + step) % size;
    for (Piece& piece : pieces_of_rank(whole, width, peer)) {
      auto result = transport_->post_receive(peer, {operation_.number, Phase::results}, piece.wire);
      others_.push_back({std::move(piece), std::move(result)});
    }
  }
  // Without a codec a result lands in the memory that its version is sent from. That is safe: its owner sends the
  // result only after the version has arrived there. Encoded, the two are in different memory.
  for (const OthersPiece& other : others_) {
    Block version = other.piece.values;
    if (codec_) {
      version = take_for_wire(scratch_, other.piece.values, *codec_);
      codec_->encode(floats(other.piece.values), bytes(version));
    }
    send(other.result->peer(), Phase::versions, version);
  }
}

std::vector<MessageSum::Piece> MessageSum::pieces_of_rank(const Block& whole, std::size_t width, int owner) {
  std::vector<Piece> pieces;
  for (const Range& range : pieces_of(slice_of(whole.size / width, width, owner, transport_->size()), width)) {
    const Block values = whole.part(range.offset * width, range.length * width);
    pieces.push_back({values, codec_ ? take_for_wire(scratch_, values, *codec_) : values});
  }
  return pieces;
}

void MessageSum::send(int peer, Phase phase, const Block& block) {
  outgoing_.push_back(transport_->post_send(peer, {operation_.number, phase}, block));
  bytes_sent_ += static_cast<std::int64_t>(block.size);
}

void MessageSum::reduce(double scale) {
  combination_.rescale.factor = scale;
  const auto deadline = operation_.deadline();
  for (OwnPiece& own : mine_) {
    const Piece& piece = own.piece;
    own.versions.combine_into(piece.values, dtype_, combination_, deadline);
    if (codec_) codec_->encode(floats(piece.values), bytes(piece.wire));
    for (int step = 1; step < transport_->size(); ++step) {
      send((transport_->rank() + step) % transport_->size(), Phase::results, piece.wire);
    }
    if (codec_) codec_->decode(bytes(piece.wire), floats(piece.values));
  }
  mine_.clear();
}

void MessageSum::finish() {
  const auto deadline = operation_.deadline();
  Transfers results;
  for (OthersPiece& other : others_) results.push_back(std::move(other.result));
  wait_all(results, deadline);
  for (const OthersPiece& other : others_) {
    if (codec_) codec_->decode(bytes(other.piece.wire), floats(other.piece.values));
  }
  wait_all(outgoing_, deadline);
}

}  // namespace tutti::comm
