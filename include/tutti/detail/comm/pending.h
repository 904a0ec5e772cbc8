#pragma once
// Operations in two steps, for gradient synchronization. An autograd hook, which must not block, starts them when a
// gradient is ready. The communicator's worker thread completes them.
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tutti::comm {

/// A sum over ranks, as reduce-scatter and all-gather. Every rank owns a shard of the tensor, adds all contributions to
/// it in a fixed order, scales the sum once and sends the result to all ranks. start_all_reduce() sends this rank's
/// contributions to the other shards and never blocks.
class PendingAllReduce {
 public:
  virtual ~PendingAllReduce() = default;
  /// Blocks until all contributions to this rank's shard are here. Sums them, multiplies by `scale` (equal on all
  /// ranks) and starts to send the result. Call once.
  virtual void finish_reduce_scatter(double scale) = 0;
  /// Blocks until the tensor holds the result, or on a device until the copy is enqueued (see block_current_stream()).
  /// Call once, after finish_reduce_scatter(), in the order in which the sums were started.
  virtual void wait() = 0;
  /// Makes later work on the calling thread's current stream wait until the tensor holds the result. Does not block the
  /// CPU. Call after wait(), on the thread that uses the tensor.
  virtual void block_current_stream() const {}
  /// The bytes that this rank has passed to other ranks so far, as messages or in shared memory.
  virtual std::int64_t bytes_sent() const = 0;
};

/// An all-gather of a few bytes of each rank.
class PendingAllGather {
 public:
  virtual ~PendingAllGather() = default;
  /// Blocks until the bytes of all ranks are here. Returns size() blocks of equal length, by rank, which stay valid as
  /// long as this object.
  virtual std::span<const std::byte> wait() = 0;
  /// True if wait() will not block.
  virtual bool is_ready() const { return false; }
};

/// An all-gather of bytes whose length may differ between ranks.
class PendingAllGatherV {
 public:
  virtual ~PendingAllGatherV() = default;
  /// Blocks until the bytes of all ranks are here. Returns size() blocks, by rank, which stay valid as long as this
  /// object. Call once, on the communicator's worker thread.
  virtual std::vector<std::span<const std::byte>> wait() = 0;
};

}  // namespace tutti::comm
