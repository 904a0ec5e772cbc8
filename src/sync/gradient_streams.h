#pragma once
// The streams on which gradients on devices are produced and used. Autograd runs the nodes of one pass on several
// streams: on those of the parameters, and on one thread for each device. The CPU has no streams. Not thread safe.
#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <vector>

namespace tutti::sync {

class GradientStreams {
 public:
  /// Must be called at the start of a backward pass.
  void begin_pass() { of_pass_.clear(); }
  /// The calling thread's current stream of `device` has written, or will use, a gradient. Returns whether it has done
  /// so for the first time.
  bool add_current(c10::Device device);
  /// Makes the calling thread's current stream of `device` wait for gradients that other streams have written in this
  /// pass. Returns whether there are such gradients.
  bool block_current_stream(c10::Device device) const;

 private:
  std::vector<c10::Stream> known_;
  std::vector<c10::Stream> of_pass_;
};

}  // namespace tutti::sync
