#include "tutti/data/to_device.h"

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/detail/CUDAHooksInterface.h>

#include "tutti/core/error.h"

namespace tutti {

Placement::Placement(at::Device device, bool non_blocking) : device_(device), non_blocking_(non_blocking) {
  if (!device.is_cuda()) return;
  const auto devices = at::hasCUDA() ? at::detail::getCUDAHooks().deviceCount() : 0;
  if (device.index() >= devices || devices == 0) {
    throw UsageError("device " + device.str() + " is not available: LibTorch sees " + std::to_string(devices) +
                     " CUDA devices");
  }
}

Placement Placement::ahead() const {
  Placement pinning;
  if (!device_ || !device_->is_cuda() || !non_blocking_) return pinning;
  pinning = *this;
  pinning.only_pin_ = true;
  return pinning;
}

at::Tensor Placement::operator()(const at::Tensor& tensor) const {
  if (!device_ || !tensor.defined()) return tensor;
  const bool pins = non_blocking_ && device_->is_cuda() && tensor.device().is_cpu();
  const at::Tensor source = pins && !tensor.is_pinned() ? tensor.pin_memory() : tensor;
  return only_pin_ ? source : source.to(*device_, /*non_blocking=*/pins);
}

}  // namespace tutti
