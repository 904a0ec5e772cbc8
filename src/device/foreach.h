#pragma once
// Operations on lists of tensors with few kernels, by LibTorch's foreach kernels. The host does not wait for a device.
#include <ATen/core/TensorBody.h>

#include <cstddef>
#include <vector>

namespace tutti::devices {

/// True if any of `tensors` is on an accelerator.
bool any_on_accelerator(const std::vector<at::Tensor>& tensors);

/// The indices of `tensors` in groups of one device and dtype each, which a foreach kernel takes together.
std::vector<std::vector<std::size_t>> by_device_and_dtype(const std::vector<at::Tensor>& tensors);

/// The tensors at `indices`.
std::vector<at::Tensor> select(const std::vector<at::Tensor>& tensors, const std::vector<std::size_t>& indices);

/// The norm of all elements together, on the device of the first tensor. Complex elements count by their absolute
/// values. It is computed in float, or in double if a tensor is double. `tensors` must not be empty.
at::Tensor norm_of(const std::vector<at::Tensor>& tensors, double norm_type);

/// Multiplies each tensor by `factor`, a scalar on any device. The factor is rounded to the tensor's dtype.
void multiply(const std::vector<at::Tensor>& tensors, const at::Tensor& factor);

/// Clamps each tensor to [low, high]. NaN stays.
void clamp(const std::vector<at::Tensor>& tensors, double low, double high);

/// Copies each of `from` to the tensor at the same index in `to`, of the same sizes, device and dtype.
void copy(const std::vector<at::Tensor>& to, const std::vector<at::Tensor>& from);

/// Swaps the values of `some` and `others`, of the same sizes, devices and dtypes.
void swap_values(const std::vector<at::Tensor>& some, const std::vector<at::Tensor>& others);

}  // namespace tutti::devices
