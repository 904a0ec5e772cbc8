#pragma once
// A device stream beside the one that the program computes on. Uses LibTorch's streams and events of any device type,
// without the device's headers. The CPU has no streams: work on it is complete when a call returns.
#include <ATen/core/TensorBody.h>
#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <chrono>
#include <functional>
#include <optional>

namespace tutti::devices {

/// A point in a stream. Thread safe.
class StreamEvent {
 public:
  explicit StreamEvent(const std::optional<c10::Stream>& stream);
  /// An event after all work that is queued on the calling thread's current stream of `device`; done at once on the
  /// CPU.
  static StreamEvent on_current_stream(c10::Device device);

  /// Makes work that is queued on the calling thread's current stream from now on run after this point.
  void block_current_stream() const;
  /// The same for `stream`.
  void block(const c10::Stream& stream) const {
    if (event_) event_->block(stream);
  }
  /// True if the device has reached this point. Does not block.
  bool is_reached() const { return !event_ || event_->query(); }
  /// Blocks the calling thread until the device has reached this point.
  void wait() const;
  /// The same, by polling, at most until `deadline` or until `is_cancelled` returns true. Returns whether the device
  /// has reached this point. For threads of the library, which must not wait for a stopped device for ever.
  bool wait_until(std::chrono::steady_clock::time_point deadline, const std::function<bool()>& is_cancelled) const;

 private:
  std::optional<c10::Device> device_;
  std::optional<c10::Event> event_;
};

/// See SideStream::record_use, for the calling thread's current stream. Does nothing for a tensor in CPU memory.
void record_use_on_current_stream(const at::TensorBase& tensor);

/// May be used from any thread, with one run() at a time.
class SideStream {
 public:
  explicit SideStream(c10::Device device);
  /// Calls `work` with this stream as the thread's current stream.
  void run(const std::function<void()>& work) const;
  /// An event after all work that was run so far.
  StreamEvent record_event() const { return StreamEvent(stream_); }
  /// Tells the device's allocator that work on this stream uses the memory of `tensor`: after the tensor is freed, the
  /// memory is reused only when all work that was run until then is done. Has no effect on memory that is freed by a
  /// deleter of its own.
  void record_use(const at::TensorBase& tensor) const;

 private:
  std::optional<c10::Stream> stream_;
};

}  // namespace tutti::devices
