#pragma once
// The operations of a Communicator for gradient synchronization. An autograd hook, which must not block, starts them.
// The communicator's queue thread completes them.
#include <ATen/core/TensorBody.h>
#include <c10/core/Device.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "tutti/comm/communicator.h"
#include "tutti/comm/wire_codec.h"
#include "tutti/comm/work.h"
#include "tutti/detail/comm/pending.h"

namespace tutti::comm {

/// Ranks compare no call signatures, because they have compared their buckets before. All ranks must start the same
/// operations in the same order. A small value, as Communicator is.
class GradientCommunicator {
 public:
  explicit GradientCommunicator(const Communicator& communicator) : queue_(communicator.queue_) {}

  int size() const;
  /// Whether start_all_reduce() accepts tensors on `device`.
  bool supports_device(at::Device device) const;
  /// Allocates the memory in which start_all_reduce() is fastest: `bytes` of uint8 on `device`, 64-byte aligned. The
  /// tensor's storage owns the mapping. Every rank must call it, with the same size. Throws UsageError unless
  /// supports_device(device).
  at::Tensor allocate(std::int64_t bytes, at::Device device = at::kCPU) const;
  /// Starts the sum of `flat` over all ranks. `flat` must be contiguous, with the same size and dtype on all ranks. On
  /// a device it must come from allocate(); in CPU memory that is the fastest. A `codec` (equal on all ranks) encodes
  /// fp32 values between nodes; other dtypes and tensors on a device are sent unencoded. See PendingAllReduce for
  /// completion.
  std::unique_ptr<PendingAllReduce> start_all_reduce(at::Tensor flat,
                                                     const std::shared_ptr<const WireCodec>& codec = nullptr) const;
  /// Starts an all-gather of a few bytes, of the same length on all ranks. See PendingAllGather.
  std::unique_ptr<PendingAllGather> start_small_all_gather(std::span<const std::byte> block) const;
  /// Starts an all-gather of bytes whose length may differ between ranks. See PendingAllGatherV.
  std::unique_ptr<PendingAllGatherV> start_all_gather_v(std::vector<std::byte> block) const;
  /// Runs `task` on the communicator's queue thread, after all tasks and operations submitted before it.
  Work submit(std::function<void()> task) const;

 private:
  std::shared_ptr<OperationQueue> queue_;
};

}  // namespace tutti::comm
