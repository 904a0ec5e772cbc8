#pragma once
// The staging buffers of device memory: host memory of the same size, in which a host backend sums.
#include <ATen/core/TensorBody.h>

#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "device/side_stream.h"

namespace tutti::comm {

using EventPointer = std::shared_ptr<const devices::StreamEvent>;

/// The host memory of one allocation on a device. Both tensors have its size, in bytes.
///
/// If the host backend has memory of its own, as shared memory is, its sums work in `host`. Where the accelerator can
/// pin that memory, `pinned` is the same tensor; otherwise the queue thread copies between the two.
class StagingBuffer {
 public:
  StagingBuffer(const at::Tensor& device_memory, at::Tensor host);
  /// Waits a few seconds for the last copies if the device may still access memory that only this object pins.
  ~StagingBuffer();
  StagingBuffer(const StagingBuffer&) = delete;
  StagingBuffer& operator=(const StagingBuffer&) = delete;

  const at::Tensor& pinned() const { return pinned_; }
  const at::Tensor& host() const { return host_; }
  /// The offset of `flat` in the device's allocation, in bytes; nullopt if it lies elsewhere or the allocation is
  /// freed.
  std::optional<std::int64_t> offset_of(const at::Tensor& flat) const;
  bool is_expired() const { return device_storage_.expired(); }

  /// The point after the last copy from `pinned` to the device; null before the first. The next copy to `pinned` must
  /// run after it.
  EventPointer last_copy_back() const;
  void set_last_copy_back(EventPointer event);
  void set_last_copy_to_host(EventPointer event);

 private:
  c10::weak_intrusive_ptr<c10::StorageImpl> device_storage_;
  const std::byte* begin_;
  std::size_t bytes_;
  at::Tensor host_;
  std::shared_ptr<void> registration_;  // null if an allocator has pinned the memory
  at::Tensor pinned_;
  mutable std::mutex mutex_;
  EventPointer last_copy_to_host_, last_copy_back_;
};

/// The part of a staging buffer that belongs to one tensor, in that tensor's dtype.
struct StagingSlice {
  std::shared_ptr<StagingBuffer> buffer;
  at::Tensor pinned;
  at::Tensor host;
};

/// The staging buffers of a backend. Thread safe.
class StagingBuffers {
 public:
  /// `host` is memory of the host backend for start_all_reduce(), of the size of `device_memory`.
  void add(const at::Tensor& device_memory, at::Tensor host);
  /// The slice of `flat`. A tensor outside the allocations gets a buffer of its own, for one all-reduce.
  StagingSlice slice_of(const at::Tensor& flat);

 private:
  std::mutex mutex_;
  std::vector<std::shared_ptr<StagingBuffer>> buffers_;
};

}  // namespace tutti::comm
