#pragma once
// The all-reduce of a tensor through a backend of the host (see staged.h). A host tensor is its own staging memory.
#include <ATen/core/TensorBody.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>

#include "comm/backend/backend.h"
#include "comm/device/staging_buffers.h"
#include "device/side_stream.h"
#include "tutti/detail/comm/pending.h"

namespace tutti::comm {

/// The side streams of one device. Copies to the host wait for the program's kernels, so copies back have a stream of
/// their own: a result must not wait for gradients that are not computed yet. Thread safe.
class StagingStreams {
 public:
  explicit StagingStreams(at::Device device) : to_host_(device), to_device_(device) {}

  /// Queues `copy` and returns the point after it.
  EventPointer copy_to_host(const std::function<void()>& copy) { return run(to_host_, copy); }
  EventPointer copy_to_device(const std::function<void()>& copy) { return run(to_device_, copy); }
  /// See SideStream::record_use.
  void record_use(const at::Tensor& tensor) const;

 private:
  EventPointer run(const devices::SideStream& stream, const std::function<void()>& copy);

  std::mutex mutex_;
  devices::SideStream to_host_, to_device_;
};

class StagedAllReduce final : public PendingAllReduce {
 public:
  /// Queues the copy to the host. `is_closed` is set when the backend is closed.
  StagedAllReduce(std::shared_ptr<Backend> host, Operation operation, at::Tensor flat, StagingSlice staging,
                  std::shared_ptr<const WireCodec> codec, std::shared_ptr<StagingStreams> streams,
                  std::shared_ptr<const std::atomic<bool>> is_closed);

  void finish_reduce_scatter(double scale) override;
  void wait() override;
  void block_current_stream() const override { completed_->block_current_stream(); }
  std::int64_t bytes_sent() const override { return sum_ ? sum_->bytes_sent() : 0; }

 private:
  std::shared_ptr<Backend> host_;
  Operation operation_;
  at::Tensor flat_;
  StagingSlice staging_;
  std::shared_ptr<const WireCodec> codec_;
  std::shared_ptr<StagingStreams> streams_;
  std::shared_ptr<const std::atomic<bool>> is_closed_;
  EventPointer arrived_;                   // after the copy to the host
  std::unique_ptr<PendingAllReduce> sum_;  // of the host
  EventPointer completed_;                 // after the copy to the device
};

}  // namespace tutti::comm
