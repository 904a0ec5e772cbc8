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
#include "tutti/detail/comm/pending.h"

namespace tutti::comm {

/// A tensor's memory; the block keeps the tensor.
Block block_of(const at::Tensor& tensor);

/// One piece of one slice: receives the other ranks' versions, then combines.
class VersionCollector {
 public:
  /// Posts the receives. `mine` is this rank's own version.
  VersionCollector(Transport& transport, Scratch& scratch, const Operation& operation, const Block& mine);
  /// Blocks until all versions are here. `result` may be `mine`.
  void combine_into(const Block& result, at::ScalarType dtype, const Combination& combination, Deadline deadline);

 private:
  Block mine_;
  int rank_;
  std::vector<Block> versions_;
  Transfers receives_;
};

class MessageSum final : public PendingSum {
 public:
  MessageSum(std::shared_ptr<Transport> transport, Scratch& scratch, Operation operation, const at::Tensor& flat,
             Combination combination = {});

  void reduce(double scale) override;
  void finish() override;
  std::int64_t bytes_sent() const override { return bytes_sent_; }

 private:
  struct Piece {
    Block block;
    VersionCollector versions;
  };

  void send(int peer, Phase phase, const Block& block);

  std::shared_ptr<Transport> transport_;
  Operation operation_;
  Combination combination_;
  at::ScalarType dtype_;
  std::vector<Piece> mine_;
  Transfers incoming_;
  Transfers outgoing_;
  std::int64_t bytes_sent_ = 0;
};

}  // namespace tutti::comm
