#pragma once
// Combining over messages, in slices: each rank owns one slice, receives the others' versions of it, combines them in
// a fixed order, and sends the result to everyone.
#include <ATen/core/TensorBody.h>

#include <cstddef>
#include <memory>
#include <vector>

#include "comm/algorithms/buffer_pool.h"
#include "comm/backend/operation.h"
#include "comm/reduction/partition.h"
#include "comm/reduction/reduce_tree.h"
#include "comm/transport/transport.h"
#include "tutti/comm/wire_codec.h"
#include "tutti/detail/comm/pending.h"

namespace tutti::comm {

/// A tensor's memory; the block keeps the tensor.
Buffer buffer_of(const at::Tensor& tensor);

/// How fp32 is encoded on its way, or, for null, that numbers travel as they are.
using OptionalCodec = std::shared_ptr<const WireCodec>;

/// One piece of one slice: receives the other ranks' versions, then combines.
class ContributionReceiver {
 public:
  /// Posts the receives. `own_chunk` is this rank's own version, which does not travel and so is not rounded.
  ContributionReceiver(Transport& transport, BufferPool& buffer_pool, const Operation& operation,
                       const Buffer& own_chunk, OptionalCodec codec = nullptr);
  /// Blocks until all versions are here. `result` may be `own_chunk`.
  void reduce_into(const Buffer& result, at::ScalarType dtype, const Reduction& reduction, Deadline deadline);

 private:
  BufferPool* buffer_pool_;
  Buffer own_chunk_;
  int rank_;
  OptionalCodec codec_;
  std::vector<Buffer> contributions_;
  Transfers receives_;
};

/// With a codec (fp32 only) messages are encoded, and results are rounded on all ranks alike (wire_codec.h).
class DirectAllReduce final : public PendingAllReduce {
 public:
  DirectAllReduce(std::shared_ptr<Transport> transport, BufferPool& buffer_pool, Operation operation,
                  const at::Tensor& flat, Reduction reduction = {}, OptionalCodec codec = nullptr);

  void finish_reduce_scatter(double scale) override;
  void wait() override;
  std::int64_t bytes_sent() const override { return bytes_sent_; }

 private:
  /// A piece of a slice of the tensor, and the result as it travels: without a codec the same memory.
  struct Chunk {
    Buffer values;
    Buffer wire;
  };
  struct OwnedChunk {
    Chunk chunk;
    ContributionReceiver contributions;
  };
  struct RemoteChunk {
    Chunk chunk;
    std::unique_ptr<Transfer> result;
  };

  std::vector<Chunk> chunks_of_rank(const Buffer& whole, std::size_t width, int owner);
  void send(int peer, Phase phase, const Buffer& buffer);

  std::shared_ptr<Transport> transport_;
  BufferPool& buffer_pool_;
  Operation operation_;
  Reduction reduction_;
  OptionalCodec codec_;
  at::ScalarType dtype_;
  std::vector<OwnedChunk> owned_chunks_;
  std::vector<RemoteChunk> remote_chunks_;
  Transfers sends_;
  std::int64_t bytes_sent_ = 0;
};

}  // namespace tutti::comm
