// The operators that create, view and copy memory of the simulated accelerator.
#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/Allocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <torch/library.h>

#include <utility>

#include "support/simulated_device/kernel_tensors.h"
#include "support/simulated_device/pinned_memory.h"
#include "support/simulated_device/runtime.h"

namespace tutti::test::simulated {
namespace {

at::Tensor empty(at::IntArrayRef sizes, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                 std::optional<at::Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  const c10::DeviceGuard guard(c10::device_or_default(device));
  return at::detail::empty_generic(sizes, c10::GetAllocator(type), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool>) {
  const c10::DeviceGuard guard(c10::device_or_default(device));
  return at::detail::empty_strided_generic(sizes, strides, c10::GetAllocator(type),
                                           c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                           c10::dtype_or_default(dtype));
}

at::Tensor& set_storage(at::Tensor& self, c10::Storage storage, std::int64_t offset, at::IntArrayRef sizes,
                        at::IntArrayRef strides) {
  return at::native::set_storage_cpu_(self, std::move(storage), offset, sizes, strides);
}

at::Tensor& set_whole_storage(at::Tensor& self, c10::Storage storage) {
  return at::native::set_(self, std::move(storage));
}

/// Work that is queued on `later` from now on runs after the work that `earlier` has now.
void order(const c10::Stream& earlier, const c10::Stream& later) {
  c10::Event event(type);
  event.record(earlier);
  event.block(later);
}

bool is_pinned_tensor(const at::Tensor& tensor) {
  return is_pinned(tensor.storage().data());
}

void launch_copy(const c10::Stream& stream, const at::Tensor& to, const at::Tensor& from) {
  launch(stream, [to, from] {
    const BelowAutograd below;
    to.copy_(from);
  });
}

void copy_on_devices(const at::Tensor& from, const at::Tensor& to, const c10::Stream& stream) {
  count(&Counts::copies_on_device);
  const at::Tensor source = to.sizes() == from.sizes() ? from : from.expand(to.sizes());
  const c10::Stream stream_of_source = current_stream(from.device().index());
  const bool is_between_devices = from.device() != to.device();
  // As with CUDA, both devices' streams wait, so that neither tensor is written or freed during the copy.
  if (is_between_devices) order(stream_of_source, stream);
  launch_copy(stream, alias_for_kernels(to), alias_for_kernels(source));
  if (is_between_devices) order(stream, stream_of_source);
}

void copy_to_device(const at::Tensor& from, const at::Tensor& to, bool non_blocking, const c10::Stream& stream) {
  count(&Counts::copies_to_device);
  // Pageable memory has been read when the call returns. Pinned memory is read when the copy runs.
  const bool is_read_later = non_blocking && is_pinned_tensor(from);
  launch_copy(stream, alias_for_kernels(to), is_read_later ? from.detach() : from.clone());
  if (!non_blocking) wait_for(stream, "copy to the device");
}

void copy_to_host(const at::Tensor& from, const at::Tensor& to, bool non_blocking, const c10::Stream& stream) {
  count(&Counts::copies_to_host);
  launch_copy(stream, to.detach(), alias_for_kernels(from));
  if (!non_blocking || !is_pinned_tensor(to)) wait_for(stream, "copy to the host");
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  const BelowAutograd below;
  const at::Device device = is_on_device(to) ? to.device() : from.device();
  const c10::DeviceGuard guard(device);
  const c10::Stream stream = current_stream(device.index());
  if (!is_on_device(from)) {
    copy_to_device(from, to, non_blocking, stream);
  } else if (!is_on_device(to)) {
    copy_to_host(from, to, non_blocking, stream);
  } else {
    copy_on_devices(from, to, stream);
  }
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  to.resize_(from.sizes());
  return copy_from(from, to, /*non_blocking=*/false);
}

at::Scalar item(const at::Tensor& self) {
  count(&Counts::copies_to_host);
  wait_for(current_stream(self.device().index()), "item()");
  return alias_for_kernels(self).item();
}

void record_stream(at::Tensor& self, c10::Stream stream) {
  record_on(self.storage().data(), stream);
}

/// Allows module->to(device): it replaces the memory of a parameter by memory on another device.
bool has_compatible_shallow_copy_type(const at::Tensor& self, const at::Tensor& from) {
  const auto is_plain = [](const at::Tensor& tensor) {
    return tensor.layout() == at::kStrided && (tensor.is_cpu() || tensor.is_privateuseone());
  };
  return is_plain(self) && is_plain(from);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", &empty);
  library.impl("empty_strided", &empty_strided);
  library.impl("as_strided", &at::native::as_strided_tensorimpl);
  library.impl("view", &at::native::view);
  library.impl("unfold", &at::native::unfold);
  library.impl("_reshape_alias", &at::native::_reshape_alias);
  library.impl("resize_", &at::native::resize_);
  library.impl("set_.source_Storage", &set_whole_storage);
  library.impl("set_.source_Storage_storage_offset", &set_storage);
  library.impl("set_.source_Tensor", &at::native::set_tensor_);
  library.impl("_copy_from", &copy_from);
  library.impl("_copy_from_and_resize", &copy_from_and_resize);
  library.impl("_local_scalar_dense", &item);
  library.impl("record_stream", &record_stream);
  library.impl("_has_compatible_shallow_copy_type", &has_compatible_shallow_copy_type);
}

}  // namespace
}  // namespace tutti::test::simulated
