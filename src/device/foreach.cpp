#include "device/foreach.h"

#include <ATen/ops/_foreach_clamp_max.h>
#include <ATen/ops/_foreach_clamp_min.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "device/devices.h"

namespace tutti::devices {

bool any_on_accelerator(const std::vector<at::Tensor>& tensors) {
  return std::ranges::any_of(tensors, [](const at::Tensor& tensor) { return is_accelerator(tensor.device()); });
}

std::vector<std::vector<std::size_t>> by_device_and_dtype(const std::vector<at::Tensor>& tensors) {
  std::vector<std::vector<std::size_t>> groups;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto fits = [&](const std::vector<std::size_t>& group) {
      const at::Tensor& first = tensors[group.front()];
      return first.device() == tensors[i].device() && first.scalar_type() == tensors[i].scalar_type();
    };
    const auto group = std::ranges::find_if(groups, fits);
    if (group == groups.end()) {
      groups.push_back({i});
    } else {
      group->push_back(i);
    }
  }
  return groups;
}

std::vector<at::Tensor> select(const std::vector<at::Tensor>& tensors, const std::vector<std::size_t>& indices) {
  std::vector<at::Tensor> selected;
  selected.reserve(indices.size());
  for (const std::size_t index : indices) selected.push_back(tensors[index]);
  return selected;
}

at::Tensor norm_of(const std::vector<at::Tensor>& tensors, double norm_type) {
  const at::Device device = tensors.front().device();
  std::vector<at::Tensor> norms;
  at::ScalarType widest = at::kFloat;  // some devices have no double
  for (const auto& group : by_device_and_dtype(tensors)) {
    std::vector<at::Tensor> real;
    for (const at::Tensor& tensor : select(tensors, group)) {
      if (tensor.numel() > 0) real.push_back(tensor.is_complex() ? tensor.abs() : tensor);
    }
    if (real.empty()) continue;
    const at::ScalarType dtype = real.front().scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    if (dtype == at::kDouble) widest = dtype;
    norms.push_back(at::stack(at::_foreach_norm(real, norm_type, dtype)).to(device, dtype, /*non_blocking=*/true));
  }
  if (norms.empty()) return at::zeros({}, at::TensorOptions(at::kFloat).device(device));
  for (at::Tensor& norm : norms) norm = norm.to(widest);
  return at::linalg_vector_norm(norms.size() == 1 ? norms.front() : at::cat(norms), norm_type);
}

void multiply(const std::vector<at::Tensor>& tensors, const at::Tensor& factor) {
  for (const auto& group : by_device_and_dtype(tensors)) {
    const at::Tensor& first = tensors[group.front()];
    at::_foreach_mul_(select(tensors, group), factor.to(first.device(), first.scalar_type(), /*non_blocking=*/true));
  }
}

void clamp(const std::vector<at::Tensor>& tensors, double low, double high) {
  for (const auto& group : by_device_and_dtype(tensors)) {
    const auto selected = select(tensors, group);
    at::_foreach_clamp_min_(selected, low);
    at::_foreach_clamp_max_(selected, high);
  }
}

void copy(const std::vector<at::Tensor>& to, const std::vector<at::Tensor>& from) {
  for (const auto& group : by_device_and_dtype(to)) {
    at::_foreach_copy_(select(to, group), select(from, group), /*non_blocking=*/true);
  }
}

void swap_values(const std::vector<at::Tensor>& some, const std::vector<at::Tensor>& others) {
  for (const auto& group : by_device_and_dtype(some)) {
    const auto here = select(some, group);
    const auto there = select(others, group);
    std::vector<at::Tensor> flat;
    for (const at::Tensor& tensor : here) flat.push_back(tensor.reshape({-1}));
    const at::Tensor kept = at::cat(flat);
    std::vector<at::Tensor> before;
    std::int64_t offset = 0;
    for (const at::Tensor& tensor : here) {
      before.push_back(kept.narrow(0, offset, tensor.numel()).view(tensor.sizes()));
      offset += tensor.numel();
    }
    at::_foreach_copy_(here, there);
    at::_foreach_copy_(there, before);
  }
}

}  // namespace tutti::devices
