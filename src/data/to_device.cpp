#include "tutti/data/to_device.h"

#include <ATen/DeviceAccelerator.h>
#include <ATen/core/Tensor.h>

#include <mutex>
#include <vector>

#include "device/devices.h"
#include "device/side_stream.h"

namespace tutti {

/// Copies from pinned memory to a device on a stream of their own.
class Placement::CopyStream {
 public:
  explicit CopyStream(at::Device device) : device_(device), stream_(device) {}

  at::Tensor copy(const at::Tensor& source) {
    const std::lock_guard lock(mutex_);
    std::erase_if(in_flight_, [](const Copy& copy) { return copy.done.is_reached(); });
    at::Tensor target;
    stream_.run([&] { target = source.to(device_, /*non_blocking=*/true); });
    in_flight_.push_back({.source = source, .done = stream_.record_event()});
    in_flight_.back().done.block_current_stream();
    devices::record_use_on_current_stream(target);
    return target;
  }

 private:
  struct Copy {
    at::Tensor source;  // kept until the device has read it
    devices::StreamEvent done;
  };

  at::Device device_;
  devices::SideStream stream_;
  std::mutex mutex_;
  std::vector<Copy> in_flight_;
};

Placement::Placement(at::Device device, bool non_blocking) {
  devices::require_available(device);
  if (devices::is_accelerator(device) && !device.has_index()) device.set_index(at::accelerator::getDeviceIndex());
  if (devices::is_accelerator(device) && non_blocking) copies_ = std::make_shared<CopyStream>(device);
  device_ = device;
}

Placement Placement::ahead() const {
  Placement pinning;
  if (!copies_) return pinning;
  pinning = *this;
  pinning.only_pin_ = true;
  return pinning;
}

at::Tensor Placement::operator()(const at::Tensor& tensor) const {
  if (!device_ || !tensor.defined()) return tensor;
  const bool pins = copies_ && tensor.device().is_cpu() && tensor.layout() == at::kStrided;
  if (!pins) return only_pin_ ? tensor : tensor.to(*device_);
  const at::Tensor source = tensor.is_pinned() ? tensor : tensor.pin_memory();
  return only_pin_ ? source : copies_->copy(source);
}

}  // namespace tutti
