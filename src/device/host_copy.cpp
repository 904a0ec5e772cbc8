#include "device/host_copy.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "device/devices.h"
#include "device/side_stream.h"

namespace tutti::devices {

at::Tensor pinned_like(const at::Tensor& like) {
  const auto options = at::TensorOptions(like.scalar_type()).device(at::kCPU);
  return at::empty(like.sizes(), options.pinned_memory(is_accelerator(like.device())));
}

at::Tensor pinned_empty(at::IntArrayRef sizes, at::ScalarType dtype) {
  const auto options = at::TensorOptions(dtype).device(at::kCPU);
  return at::empty(sizes, options.pinned_memory(accelerator_type() && device_count(*accelerator_type()) > 0));
}

void copy_without_wait(const at::Tensor& target, const at::Tensor& source) {
  const bool to_accelerator = is_accelerator(target.device()) && source.device().is_cpu();
  target.copy_(to_accelerator && !source.is_pinned() ? source.pin_memory() : source, /*non_blocking=*/to_accelerator);
}

std::vector<at::Tensor> start_copies_on_host(const std::vector<at::Tensor>& tensors,
                                             std::vector<StreamEvent>& arrivals) {
  std::vector<at::Tensor> copies;
  std::vector<c10::Device> devices;
  copies.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) {
    if (!is_accelerator(tensor.device())) {
      copies.push_back(tensor);
      continue;
    }
    copies.push_back(pinned_like(tensor));
    copies.back().copy_(tensor.detach(), /*non_blocking=*/true);
    if (std::ranges::find(devices, tensor.device()) == devices.end()) devices.push_back(tensor.device());
  }
  for (const c10::Device device : devices) arrivals.push_back(StreamEvent::on_current_stream(device));
  return copies;
}

std::vector<at::Tensor> copies_on_host(const std::vector<at::Tensor>& tensors) {
  std::vector<StreamEvent> arrivals;
  std::vector<at::Tensor> copies = start_copies_on_host(tensors, arrivals);
  for (const StreamEvent& arrival : arrivals) arrival.wait();
  return copies;
}

}  // namespace tutti::devices
