#pragma once
// A queue of work on a device beside the one that a program computes on. Streams and events of any device LibTorch
// knows, without its headers; the CPU has none, and there everything has been done when a call comes back.
#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <functional>
#include <optional>

namespace tutti::comm {

/// A point in a stream. To be waited for by streams, not by the CPU. Any thread.
class StreamEvent {
 public:
  explicit StreamEvent(const std::optional<c10::Stream>& stream);
  /// What the calling thread's current stream is given from now on runs after this point.
  void block_current_stream() const;

 private:
  std::optional<c10::Device> device_;
  std::optional<c10::Event> event_;
};

/// Any thread, but one run() at a time.
class SideStream {
 public:
  explicit SideStream(c10::Device device);
  /// Calls `work` with this stream as the thread's current one.
  void run(const std::function<void()>& work) const;
  /// After all that was run so far.
  StreamEvent record_event() const { return StreamEvent(stream_); }

 private:
  std::optional<c10::Stream> stream_;
};

}  // namespace tutti::comm
