#pragma once
// Combining over messages, in slices: each rank owns one slice, receives the others' versions of it, combines them in
// a fixed order, and sends the result to everyone.
#include <ATen/core/TensorBody.h>

#include <cstddef>
#include <memory>
#include <vector>

#include "comm/engine/operation.h"
#include "comm/messages/scratch.h"
#include "comm/messages/transport.h"
#include "comm/sums/combine.h"
#include "comm/sums/slices.h"
#include "tutti/comm/wire_codec.h"
#include "tutti/detail/comm/pending.h"

namespace tutti::comm {

/// A tensor's memory; the block keeps the tensor.
Block block_of(const at::Tensor& tensor);

/// How fp32 is encoded on its way, or, for null, that numbers travel as they are.
using MaybeCodec = std::shared_ptr<const WireCodec>;

/// One piece of one slice: receives the other ranks' versions, then combines.
class VersionCollector {
 public:
  /// Posts the receives. `mine` is this rank's own version, which does not travel and so is not rounded.
  VersionCollector(Transport& transport, Scratch& scratch, const Operation& operation, const Block& mine,
                   MaybeCodec codec = nullptr);
  /// Blocks until all versions are here. `result` may be `mine`.
  void combine_into(const Block& result, at::ScalarType dtype, const Combination& combination, Deadline deadline);

 private:
  Scratch* scratch_;
  Block mine_;
  int rank_;
  MaybeCodec codec_;
  std::vector<Block> versions_;
  Transfers receives_;
};

/// With a codec (fp32 only) messages are encoded, and results are rounded on all ranks alike (wire_codec.h).
class MessageSum final : public PendingSum {
 public:
  MessageSum(std::shared_ptr<Transport> transport, Scratch& scratch, Operation operation, const at::Tensor& flat,
             Combination combination = {}, MaybeCodec codec = nullptr);

  void reduce(double scale) override;
  void finish() override;
  std::int64_t bytes_sent() const override { return bytes_sent_; }

 private:
  /// A piece of a slice of the tensor, and the result as it travels: without a codec the same memory.
  struct Piece {
    Block values;
    Block wire;
  };
  struct OwnPiece {
    Piece piece;
    VersionCollector versions;
  };
  struct OthersPiece {
    Piece piece;
    std::unique_ptr<Transfer> result;
  };

  std::vector<Piece> pieces_of_rank(const Block& whole, std::size_t width, int owner);
  void send(int peer, Phase phase, const Block& block);

  std::shared_ptr<Transport> transport_;
  Scratch& scratch_;
  Operation operation_;
  Combination combination_;
  MaybeCodec codec_;
  at::ScalarType dtype_;
  std::vector<OwnPiece> mine_;
  std::vector<OthersPiece> others_;
  Transfers outgoing_;
  std::int64_t bytes_sent_ = 0;
};

}  // namespace tutti::comm
