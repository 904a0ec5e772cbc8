#include "support/simulated_device/kernel_tensors.h"

#include <ATen/ops/_neg_view.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include "support/simulated_device/runtime.h"

namespace tutti::test::simulated {
namespace {

/// A tensor on `device` with the layout of `tensor`.
at::Tensor with_layout_of(const at::Tensor& tensor, c10::Device device) {
  const auto options = at::TensorOptions(tensor.scalar_type()).device(device);
  std::int64_t extent = tensor.numel() == 0 ? 0 : 1;
  for (std::int64_t i = 0; i < tensor.dim() && extent > 0; ++i) extent += (tensor.size(i) - 1) * tensor.stride(i);
  const at::Tensor memory = device.is_cpu() ? at::zeros({extent}, options) : at::empty({extent}, options);
  return memory.as_strided(tensor.sizes(), tensor.strides(), 0);
}

}  // namespace

bool is_on_device(const at::Tensor& tensor) {
  return tensor.defined() && tensor.is_privateuseone();
}

at::Tensor alias_for_kernels(const at::Tensor& tensor) {
  const auto options = at::TensorOptions(tensor.scalar_type()).device(at::kCPU);
  if (tensor.numel() == 0) return at::empty_strided(tensor.sizes(), tensor.strides(), options);
  at::Tensor alias =
      at::from_blob(as_seen_by_kernels(tensor.const_data_ptr()), tensor.sizes(), tensor.strides(), options);
  if (tensor.is_conj()) alias = alias.conj();
  if (tensor.is_neg()) alias = at::_neg_view(alias);
  return alias;
}

void for_each_tensor(const c10::IValue& value, const std::function<void(const at::Tensor&)>& action) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) action(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) action(tensor);
  } else if (value.isOptionalTensorList()) {
    for (const auto& tensor : value.toOptionalTensorVector()) {
      if (tensor && tensor->defined()) action(*tensor);
    }
  }
}

c10::IValue ArgumentTranslator::operator()(const c10::IValue& value) {
  if (value.isTensor()) return translated(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(translated(tensor));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector()) {
      list.push_back(tensor ? std::optional(translated(*tensor)) : std::nullopt);
    }
    return list;
  }
  if (value.isDevice()) return device();
  return value;
}

at::Tensor ArgumentTranslator::translated(const at::Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  if (!is_on_device(tensor)) {
    // The launch takes a number of the host along. Other tensors are indices.
    if (purpose_ == Purpose::kernel) return tensor.is_cpu() && tensor.dim() == 0 ? tensor.clone() : tensor;
    return purpose_ == Purpose::shapes && tensor.dim() > 0 ? with_layout_of(tensor, at::kMeta) : tensor;
  }
  at::Tensor& known = known_[tensor.unsafeGetTensorImpl()];
  if (!known.defined()) {
    known = purpose_ == Purpose::kernel ? alias_for_kernels(tensor) : with_layout_of(tensor, device());
  }
  return known;
}

}  // namespace tutti::test::simulated
