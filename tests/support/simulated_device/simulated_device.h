#pragma once
// The simulated accelerator, device "sim" of LibTorch. README.md says what it shows and what it cannot.
#include <future>

#include "support/simulated_device/runtime.h"

namespace tutti::test::simulated {

/// Registers the device with LibTorch. Call it before the first tensor of the device; later calls do nothing.
void register_device();

/// Kernels are slow while an object of this class exists.
class SlowKernels {
 public:
  /// Each kernel of `device`, or of all devices with -1, takes `microseconds` longer.
  explicit SlowKernels(int microseconds, int device = -1) {
    settings().slow_device = device;
    settings().microseconds_per_kernel = microseconds;
  }
  SlowKernels(const SlowKernels&) = delete;
  SlowKernels& operator=(const SlowKernels&) = delete;
  ~SlowKernels() {
    settings().microseconds_per_kernel = 0;
    settings().slow_device = -1;
  }
};

/// Holds a stream: work that is queued on it later runs after open().
class StreamLatch {
 public:
  explicit StreamLatch(const c10::Stream& stream) {
    launch(
        stream, [opened = opened_.get_future().share()] { opened.wait(); }, /*is_kernel=*/false);
  }
  StreamLatch(const StreamLatch&) = delete;
  StreamLatch& operator=(const StreamLatch&) = delete;
  ~StreamLatch() { open(); }
  void open() {
    if (!is_open_) opened_.set_value();
    is_open_ = true;
  }

 private:
  std::promise<void> opened_;
  bool is_open_ = false;
};

}  // namespace tutti::test::simulated
