#pragma once
// MessageSum for fp32 whose messages are encoded (wire_codec.h).
#include <ATen/core/TensorBody.h>

#include <memory>
#include <vector>

#include "comm/messages/sum.h"
#include "tutti/comm/wire_codec.h"

namespace tutti::comm {

class CodedSum final : public PendingSum {
 public:
  CodedSum(std::shared_ptr<Transport> transport, Scratch& scratch, Operation operation, const at::Tensor& flat,
           std::shared_ptr<const WireCodec> codec);

  void reduce(double scale) override;
  void finish() override;
  std::int64_t bytes_sent() const override { return bytes_sent_; }

 private:
  /// A piece of some rank's slice.
  struct Piece {
    std::span<float> values;
    Block encoded;                // what this rank sends or applies
    std::vector<Block> versions;  // by rank, of pieces that this rank owns
    Transfers incoming;
  };

  std::vector<Piece> pieces_of_rank(const Block& whole, std::size_t elements, int owner);
  void send(int peer, Phase phase, const Block& block);

  std::shared_ptr<Transport> transport_;
  Scratch& scratch_;
  Operation operation_;
  std::shared_ptr<const WireCodec> codec_;
  at::Tensor flat_;
  std::vector<Piece> mine_;
  std::vector<Piece> others_;
  Transfers outgoing_;
  std::int64_t bytes_sent_ = 0;
};

}  // namespace tutti::comm
