#pragma once
// A staging buffer in pinned CPU memory for tensors on accelerators: the algorithm works on the host, the model is
// trained on a device. Each direction is one flat copy for each device. The thread that starts a copy does not wait.
#include <ATen/core/TensorBody.h>

#include <utility>
#include <vector>

#include "device/side_stream.h"

namespace tutti::local_sgd {

class StagingBuffer {
 public:
  StagingBuffer(std::int64_t elements, at::ScalarType dtype);

  /// Starts to copy the elements of `tensors`, one after the other, to the buffer. The values are those after the work
  /// that is queued on the calling thread's current stream. The copy to the host runs on a side stream, so it overlaps
  /// with later work. finish_read() must follow.
  void start_read(const std::vector<at::Tensor>& tensors);
  /// Blocks until the buffer holds the values. Any thread may call it.
  void finish_read();

  /// The buffer: flat. Blocks until earlier writes have left it, so the caller may change it.
  const at::Tensor& values();

  // Each queues its work on the current stream and does not wait. The tensors' elements together are the buffer's.

  /// Copies the buffer to `tensors`.
  void write_to(const std::vector<at::Tensor>& tensors);
  /// Adds the buffer to `tensors`.
  void add_to(const std::vector<at::Tensor>& tensors);
  /// Replaces each element x of `tensors` by `share` x + (1 - `share`) v, with v of the buffer.
  void mix_into(const std::vector<at::Tensor>& tensors, double share);

 private:
  template <typename Update>
  void write(const std::vector<at::Tensor>& tensors, const Update& update);
  const devices::SideStream& side_stream(at::Device device);

  at::Tensor values_;
  std::vector<std::pair<at::Device, devices::SideStream>> side_streams_;
  std::vector<devices::StreamEvent> reads_;
  std::vector<at::Tensor> sources_;  ///< of the reads in flight
  std::vector<devices::StreamEvent> writes_;
};

}  // namespace tutti::local_sgd
