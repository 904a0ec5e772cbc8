#pragma once
// A sum over messages where every rank talks to few others (sum_moves.h).
#include <ATen/core/TensorBody.h>

#include <memory>
#include <vector>

#include "comm/engine/operation.h"
#include "comm/messages/scratch.h"
#include "comm/messages/sum_moves.h"
#include "comm/messages/transport.h"
#include "comm/sums/combine.h"
#include "comm/sums/slices.h"
#include "tutti/detail/comm/pending.h"

namespace tutti::comm {

/// fp16 and bf16 travel as fp32, and are rounded once, at the end.
class HalvingSum final : public PendingSum {
 public:
  HalvingSum(std::shared_ptr<Transport> transport, Scratch& scratch, Operation operation, const at::Tensor& flat,
             Combination combination = {});

  void reduce(double scale) override;
  void finish() override;
  std::int64_t bytes_sent() const override { return bytes_sent_; }

 private:
  /// What comes in for one move, in pieces: while one is added the next one arrives.
  struct Arrival {
    std::vector<Range> pieces;  // where they belong, in elements
    std::vector<Block> blocks;
    Transfers transfers;
  };
  /// The sum of the ranks on the right, of the elements from `begin` on.
  struct Aside {
    Block block;
    std::size_t begin = 0;
  };

  std::vector<Range> pieces_in(const SliceRun& slices) const;
  Block own(const Range& piece) const { return values_.part(piece.offset * width_, piece.length * width_); }
  Block aside(const Range& piece) const {
    return aside_.block.part((piece.offset - aside_.begin) * width_, piece.length * width_);
  }
  Arrival expect(const SumMove& move, Scratch& scratch);
  void send(const SumMove& move);
  void receive(const SumMove& move, Arrival& arrival, const Combination& combination, Deadline deadline);
  void add_aside(const SumMove& move, const Combination& combination) const;
  void add(const Block& left, const Block& right, const Block& result, const Combination& combination) const;

  std::shared_ptr<Transport> transport_;
  Operation operation_;
  Combination combination_;
  at::Tensor flat_;
  at::Tensor wide_;  // what is added up: `flat_` itself, or its numbers in fp32
  Block values_;
  std::size_t width_;
  SumMoves moves_;
  std::vector<Arrival> adding_;     // by move
  std::vector<Arrival> spreading_;  // by move
  Aside aside_;
  std::size_t made_ = 0;  // moves of the part that is under way
  Transfers outgoing_;
  std::int64_t bytes_sent_ = 0;
};

}  // namespace tutti::comm
