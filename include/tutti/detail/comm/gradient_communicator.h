#pragma once
// The operations of a Communicator for gradient synchronization. An autograd hook, which must not block, starts them.
// The communicator's queue thread completes them.
#include <ATen/core/TensorBody.h>
#include <c10/core/Device.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "tutti/comm/communicator.h"
#include "tutti/comm/wire_codec.h"
#include "tutti/comm/work.h"
#include "tutti/detail/comm/pending.h"

namespace tutti::comm {

class QueuedAllReduce;

/// What the queue thread calls during an all-reduce.
struct AllReduceCallbacks {
  std::function<double()> scale;         ///< the factor of the sum, equal on all ranks; called before the reduction
  std::function<void()> on_completed{};  ///< called when the tensor holds the result, on its device too; may be empty
};

/// Ranks compare no call signatures, because they have compared their buckets before. All ranks must start the same
/// operations in the same order. A small value, as Communicator is.
class GradientCommunicator {
 public:
  explicit GradientCommunicator(const Communicator& communicator) : queue_(communicator.queue_) {}

  int size() const;
  /// Throws the failure of an earlier operation: PeerError with the failed ranks, or MismatchError.
  void throw_if_failed() const;
  /// Whether start_all_reduce() accepts tensors on `device`.
  bool supports_device(at::Device device) const;
  /// Whether sums of tensors on `device` add the ranks in a fixed order, so that they have the same bits in every run.
  bool sums_in_fixed_order(at::Device device) const;
  /// Allocates the memory in which start_all_reduce() is fastest: `bytes` of uint8 on `device`, 64-byte aligned. The
  /// tensor's storage owns the mapping. Every rank must call it, with the same size. Throws UsageError unless
  /// supports_device(device).
  at::Tensor allocate(std::int64_t bytes, at::Device device = at::kCPU) const;
  /// Starts the sum of `flat` over all ranks. `flat` must be contiguous, with the same size and dtype on all ranks. On
  /// a device it must come from allocate(); in CPU memory that is the fastest. A `codec` (equal on all ranks) encodes
  /// fp32 values between nodes; other dtypes, and sums by a c10d backend on nodes with different numbers of ranks, are
  /// sent unencoded. See PendingAllReduce for completion.
  std::unique_ptr<PendingAllReduce> start_all_reduce(at::Tensor flat,
                                                     const std::shared_ptr<const WireCodec>& codec = nullptr) const;
  /// Starts the sum of `flat` as above, and queues its reduction.
  std::shared_ptr<QueuedAllReduce> queue_all_reduce(at::Tensor flat, const std::shared_ptr<const WireCodec>& codec,
                                                    AllReduceCallbacks callbacks) const;
  /// Starts an all-gather of a few bytes, of the same length on all ranks. See PendingAllGather.
  std::unique_ptr<PendingAllGather> start_small_all_gather(std::span<const std::byte> block) const;
  /// Starts an all-gather of bytes whose length may differ between ranks. See PendingAllGatherV.
  std::unique_ptr<PendingAllGatherV> start_all_gather_v(std::vector<std::byte> block) const;
  /// Runs `task` on the communicator's queue thread, after all tasks and operations submitted before it.
  Work submit(std::function<void()> task) const;

 private:
  std::shared_ptr<OperationQueue> queue_;
};

/// An all-reduce whose steps the communicator's queue thread runs in order. The last step is queued by complete(), so
/// that it does not delay the reductions of later all-reduces. Destroying it before the last step aborts the
/// communicator.
class QueuedAllReduce : public std::enable_shared_from_this<QueuedAllReduce> {
 public:
  QueuedAllReduce(GradientCommunicator communicator, std::unique_ptr<PendingAllReduce> pending,
                  AllReduceCallbacks callbacks)
      : communicator_(std::move(communicator)), pending_(std::move(pending)), callbacks_(std::move(callbacks)) {}

  /// Completes when this rank's shard is reduced.
  const Work& reduction() const { return reduction_; }
  /// Queues the last step in the first call. The Work completes when the tensor holds the result, or on a device when
  /// the copy is enqueued, and `on_completed` has returned. Not thread safe.
  Work complete();
  /// See PendingAllReduce.
  void block_current_stream() const { pending_->block_current_stream(); }
  std::int64_t bytes_sent() const { return pending_->bytes_sent(); }

 private:
  friend class GradientCommunicator;

  GradientCommunicator communicator_;
  std::unique_ptr<PendingAllReduce> pending_;
  AllReduceCallbacks callbacks_;
  Work reduction_;
  std::optional<Work> completion_;
};

}  // namespace tutti::comm
