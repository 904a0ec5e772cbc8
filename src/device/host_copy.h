#pragma once
// Copies between devices and the host that wait for each device once, whatever the number of tensors.
#include <ATen/core/TensorBody.h>

#include <vector>

#include "device/side_stream.h"

namespace tutti::devices {

/// `tensors` in CPU memory. A tensor on an accelerator is copied, detached and contiguous, to pinned memory, and the
/// calling thread waits for each device once. A tensor in CPU memory is returned as it is.
std::vector<at::Tensor> copies_on_host(const std::vector<at::Tensor>& tensors);
/// The same without the wait. The copies hold their values when the events that the call appends to `arrivals`, one for
/// each device, have been reached.
std::vector<at::Tensor> start_copies_on_host(const std::vector<at::Tensor>& tensors,
                                             std::vector<StreamEvent>& arrivals);

/// An empty tensor in pinned CPU memory, of the sizes and dtype of `like`: copies between it and the accelerator can be
/// non-blocking. Plain CPU memory without an accelerator.
at::Tensor pinned_like(const at::Tensor& like);
/// The same of given sizes and dtype: pinned if this process has an accelerator.
at::Tensor pinned_empty(at::IntArrayRef sizes, at::ScalarType dtype);

/// Copies `source` into `target`. From CPU memory to an accelerator it goes through pinned memory, and the calling
/// thread does not wait for the device.
void copy_without_wait(const at::Tensor& target, const at::Tensor& source);

}  // namespace tutti::devices
