#include "comm/messages/coded_sum.h"

#include <utility>

namespace tutti::comm {
namespace {

std::span<float> floats(const Block& block) {
  return {reinterpret_cast<float*>(block.data), block.size / sizeof(float)};
}

std::span<std::byte> bytes(const Block& block) {
  return {block.data, block.size};
}

}  // namespace

CodedSum::CodedSum(std::shared_ptr<Transport> transport, Scratch& scratch, Operation operation, const at::Tensor& flat,
                   std::shared_ptr<const WireCodec> codec)
    : transport_(std::move(transport)),
      scratch_(scratch),
      operation_(std::move(operation)),
      codec_(std::move(codec)),
      flat_(flat) {
  const Block whole = block_of(flat);
  const auto elements = static_cast<std::size_t>(flat.numel());
  const int rank = transport_->rank();
  const int size = transport_->size();
  mine_ = pieces_of_rank(whole, elements, rank);
  for (Piece& piece : mine_) {
    piece.versions.resize(static_cast<std::size_t>(size));
    for (int peer = 0; peer < size; ++peer) {
      if (peer == rank) continue;
      auto& version = piece.versions[static_cast<std::size_t>(peer)];
      version = scratch_.take(piece.encoded.size);
      piece.incoming.push_back(transport_->post_receive(peer, {operation_.number, Phase::versions}, version));
    }
  }
  // The result comes into other memory than the version leaves from, so that it cannot overtake it.
  for (int step = 1; step < size; ++step) {
    const int peer = (rank + step) % size;
    for (Piece& piece : pieces_of_rank(whole, elements, peer)) {
      const Block version = scratch_.take(piece.encoded.size);
      codec_->encode(piece.values, bytes(version));
      send(peer, Phase::versions, version);
      piece.incoming.push_back(transport_->post_receive(peer, {operation_.number, Phase::results}, piece.encoded));
      others_.push_back(std::move(piece));
    }
  }
}

std::vector<CodedSum::Piece> CodedSum::pieces_of_rank(const Block& whole, std::size_t elements, int owner) {
  std::vector<Piece> pieces;
  const Range slice = slice_of(elements, sizeof(float), owner, transport_->size());
  for (const Range& range : pieces_of(slice, sizeof(float))) {
    Piece& piece = pieces.emplace_back();
    piece.values = floats(whole.part(range.offset * sizeof(float), range.length * sizeof(float)));
    piece.encoded = scratch_.take(codec_->encoded_bytes(range.length));
  }
  return pieces;
}

void CodedSum::send(int peer, Phase phase, const Block& block) {
  outgoing_.push_back(transport_->post_send(peer, {operation_.number, phase}, block));
  bytes_sent_ += static_cast<std::int64_t>(block.size);
}

void CodedSum::reduce(double scale) {
  const auto deadline = operation_.deadline();
  const int rank = transport_->rank();
  for (Piece& piece : mine_) {
    wait_all(piece.incoming, deadline);
    std::vector<Block> decoded(piece.versions.size());
    std::vector<const std::byte*> versions(piece.versions.size());
    for (std::size_t peer = 0; peer < versions.size(); ++peer) {
      if (static_cast<int>(peer) == rank) {
        // Its own version is not rounded: it does not travel.
        versions[peer] = reinterpret_cast<const std::byte*>(piece.values.data());
        continue;
      }
      decoded[peer] = scratch_.take(piece.values.size_bytes());
      codec_->decode(bytes(piece.versions[peer]), floats(decoded[peer]));
      versions[peer] = decoded[peer].data;
    }
    const Combination sum{.op = ReduceOp::sum, .rescale = {.factor = scale}};
    combine(versions, reinterpret_cast<std::byte*>(piece.values.data()), piece.values.size(), at::kFloat, sum);
    codec_->encode(piece.values, bytes(piece.encoded));
    for (int step = 1; step < transport_->size(); ++step) {
      send((rank + step) % transport_->size(), Phase::results, piece.encoded);
    }
    codec_->decode(bytes(piece.encoded), piece.values);
    piece.versions.clear();
  }
}

void CodedSum::finish() {
  const auto deadline = operation_.deadline();
  for (Piece& piece : others_) {
    wait_all(piece.incoming, deadline);
    codec_->decode(bytes(piece.encoded), piece.values);
  }
  wait_all(outgoing_, deadline);
}

}  // namespace tutti::comm
