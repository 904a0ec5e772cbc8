#pragma once
// Operations in steps, for gradient rounds: started where a gradient is ready (an autograd hook, which must not block),
// completed on a channel's own thread.
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tutti::comm {

/// A sum over ranks in slices: every rank owns a slice of the tensor, adds all ranks' versions of it in a fixed order,
/// scales once, and hands the result to everyone. start_all_reduce() sends this rank's versions of the others' slices
/// and never blocks.
class PendingAllReduce {
 public:
  virtual ~PendingAllReduce() = default;
  /// Blocks until all ranks' versions of this rank's slice are here, sums them, multiplies by `scale` (equal on all
  /// ranks), and starts handing the result out. Call once.
  virtual void finish_reduce_scatter(double scale) = 0;
  /// Blocks until the whole result is in the tensor, or on its way there (see block_current_stream()). Call once, after
  /// finish_reduce_scatter().
  virtual void wait() = 0;
  /// On the thread that goes on with the tensor, after wait(): what this thread's current stream of the device is
  /// given from now on runs after the result is there. The CPU waits for nothing.
  virtual void block_current_stream() const {}
  /// What this rank has given to others so far, as messages or in shared memory.
  virtual std::int64_t bytes_sent() const = 0;
};

/// Every rank's few bytes to every rank.
class PendingAllGather {
 public:
  virtual ~PendingAllGather() = default;
  /// Blocks until all ranks' bytes are here: size() blocks of equal length, by rank. Valid while this object lives.
  virtual std::span<const std::byte> wait() = 0;
  /// Whether wait() is known not to block.
  virtual bool is_ready() const { return false; }
};

/// Every rank's bytes, which may differ in length, to every rank.
class PendingAllGatherV {
 public:
  virtual ~PendingAllGatherV() = default;
  /// Blocks until all ranks' bytes are here: size() blocks, by rank. Valid while this object lives. Call once, on the
  /// channel's own thread.
  virtual std::vector<std::span<const std::byte>> wait() = 0;
};

}  // namespace tutti::comm
