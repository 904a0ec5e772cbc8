#pragma once
// The direct all-reduce over point-to-point messages: each rank owns one shard, receives the other ranks' contributions
// to it, reduces them in a fixed order, and sends the result to all ranks.
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

/// The memory of `tensor`. The buffer keeps the tensor alive.
Buffer buffer_of(const at::Tensor& tensor);

/// The encoding of fp32 values in messages; null sends values unencoded.
using OptionalCodec = std::shared_ptr<const WireCodec>;

/// Receives the other ranks' contributions to one chunk of this rank's shard, and reduces them.
class ContributionReceiver {
 public:
  /// Posts the receives. `own_chunk` is this rank's own contribution, which is not sent and therefore not rounded.
  ContributionReceiver(Transport& transport, BufferPool& buffer_pool, const Operation& operation,
                       const Buffer& own_chunk, OptionalCodec codec = nullptr);
  /// Blocks until all contributions have been received, and reduces them. `result` may be `own_chunk`. Throws
  /// TransferError.
  void reduce_into(const Buffer& result, at::ScalarType dtype, const Reduction& reduction, Deadline deadline);

 private:
  BufferPool* buffer_pool_;
  int rank_;
  OptionalCodec codec_;
  std::vector<Buffer> contributions_;
  Transfers receives_;
};

/// With a codec (fp32 only) messages are encoded, and all ranks round the result equally (wire_codec.h).
class DirectAllReduce final : public PendingAllReduce {
 public:
  DirectAllReduce(std::shared_ptr<Transport> transport, BufferPool& buffer_pool, Operation operation,
                  const at::Tensor& flat, Reduction reduction = {}, OptionalCodec codec = nullptr);

  void finish_reduce_scatter(double scale) override;
  void wait() override;
  std::int64_t bytes_sent() const override { return bytes_sent_; }

 private:
  /// A chunk of the tensor, and the buffer of its result in messages. Without a codec both are the same memory.
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
