#include "sync/gradient_buffer.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <string>
#include <utility>

#include "device/side_stream.h"
#include "tutti/core/error.h"
#include "tutti/detail/comm/gradient_communicator.h"

namespace tutti::sync {

namespace {

/// Numbers the dtypes and devices of `parameters` in order of appearance.
struct Groups {
  std::vector<GradientSize> sizes;
  std::vector<GradientBuffer::DtypeDevice> kinds;
};

Groups group_by_dtype_and_device(const std::vector<at::Tensor>& parameters) {
  Groups groups;
  for (const at::Tensor& parameter : parameters) {
    const GradientBuffer::DtypeDevice kind{.dtype = parameter.scalar_type(), .device = parameter.device()};
    const auto known = std::find(groups.kinds.begin(), groups.kinds.end(), kind);
    groups.sizes.push_back({.bytes = static_cast<std::int64_t>(parameter.nbytes()),
                            .group = static_cast<int>(known - groups.kinds.begin())});
    if (known == groups.kinds.end()) groups.kinds.push_back(kind);
  }
  return groups;
}

/// A tensor over `memory` that starts at byte `offset`.
at::Tensor tensor_over(const at::Tensor& memory, at::ScalarType dtype, std::int64_t offset, at::IntArrayRef sizes,
                       at::IntArrayRef strides) {
  const auto element = static_cast<std::int64_t>(c10::elementSize(dtype));
  at::Tensor tensor = at::empty({0}, memory.options().dtype(dtype));
  return tensor.set_(memory.storage(), offset / element, sizes, strides);
}

/// A pointer to `begin` that keeps `owner` alive.
c10::DataPtr data_of(const at::Tensor& owner, void* begin) {
  return {begin, new at::Tensor(owner), [](void* tensor) { delete static_cast<at::Tensor*>(tensor); }, owner.device()};
}

/// A tensor whose storage begins at byte `offset` of `memory`.
at::Tensor tensor_from(const at::Tensor& memory, at::ScalarType dtype, std::int64_t offset, std::int64_t bytes,
                       at::IntArrayRef sizes, at::IntArrayRef strides) {
  auto* const begin = static_cast<std::byte*>(memory.data_ptr()) + offset;
  const c10::Storage storage(c10::Storage::use_byte_size_t(), static_cast<std::size_t>(bytes), data_of(memory, begin));
  return at::empty({0}, memory.options().dtype(dtype)).set_(storage, 0, sizes, strides);
}

/// A slot in the layout that autograd keeps for a gradient: the parameter's layout if it is dense, else row-major.
at::Tensor slot_over(const at::Tensor& memory, const at::Tensor& parameter, std::int64_t offset) {
  const auto bytes = static_cast<std::int64_t>(parameter.nbytes());
  if (parameter.is_non_overlapping_and_dense()) {
    return tensor_from(memory, parameter.scalar_type(), offset, bytes, parameter.sizes(), parameter.strides());
  }
  std::vector<std::int64_t> row_major(parameter.dim(), 1);
  for (std::int64_t i = parameter.dim() - 2; i >= 0; --i) row_major[i] = row_major[i + 1] * parameter.size(i + 1);
  return tensor_from(memory, parameter.scalar_type(), offset, bytes, parameter.sizes(), row_major);
}

}  // namespace

GradientBuffer::GradientBuffer(std::vector<at::Tensor> parameters, const BucketOptions& options,
                               const Communicator& communicator)
    : parameters_(std::move(parameters)) {
  Groups groups = group_by_dtype_and_device(parameters_);
  sizes_ = std::move(groups.sizes);
  group_types_ = std::move(groups.kinds);
  plan_ = plan_buckets(sizes_, options);
  for (std::size_t group = 0; group < group_types_.size(); ++group) {
    memory_.push_back(
        comm::GradientCommunicator(communicator).allocate(plan_.group_bytes[group], group_types_[group].device));
  }
  cut_buckets();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    slots_.push_back(slot_over(memory_[sizes_[i].group], parameters_[i], plan_.slots[i].offset));
  }
}

void GradientBuffer::cut_buckets() {
  buckets_.clear();
  for (const Bucket& bucket : plan_.buckets) {
    const at::ScalarType dtype = group_types_[bucket.group].dtype;
    const std::int64_t count = (bucket.end - bucket.begin) / static_cast<std::int64_t>(c10::elementSize(dtype));
    buckets_.push_back(tensor_over(memory_[bucket.group], dtype, bucket.begin, {count}, {1}));
    // Padding between slots is summed too, so it must be finite.
    buckets_.back().zero_();
  }
}

bool GradientBuffer::has_outside_views() const {
  return std::ranges::any_of(slots_, [](const at::Tensor& slot) { return slot.storage().use_count() > 1; });
}

void GradientBuffer::detach_views(int parameter) {
  at::Tensor& slot = slots_[parameter];
  const bool is_gradient = aliased(parameter);
  if (is_gradient || (slot.use_count() == 1 && slot.storage().use_count() == 1)) return;
  const at::NoGradGuard no_grad;
  const at::Tensor fresh =
      slot_over(memory_[sizes_[parameter].group], parameters_[parameter], plan_.slots[parameter].offset);
  const at::Tensor copy = slot.clone();
  // Every tensor over the slot, and every view of it, uses this storage.
  c10::DataPtr& separate = copy.storage().unsafeGetStorageImpl()->mutable_data_ptr();
  slot.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(separate));
  slot = fresh;
}

void GradientBuffer::rebuild(BucketPlan plan) {
  std::vector<at::Tensor> old;
  for (const at::Tensor& slot : slots_) old.push_back(slot.clone());
  plan_ = std::move(plan);
  cut_buckets();
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    const at::Tensor place = slot_over(memory_[sizes_[i].group], parameters_[i], plan_.slots[i].offset);
    // Changes the tensor in place, so that a .grad that is the slot stays the slot.
    slots_[i].set_(place.storage(), place.storage_offset(), place.sizes(), place.strides());
    slots_[i].copy_(old[i]);
  }
}

bool GradientBuffer::aliased(int parameter) const {
  return parameters_[parameter].grad().unsafeGetTensorImpl() == slots_[parameter].unsafeGetTensorImpl();
}

void GradientBuffer::require_dense(int parameter) const {
  const at::Tensor& grad = parameters_[parameter].grad();
  if (!grad.defined() || grad.layout() == at::kStrided) return;
  throw UsageError(
      "backward produced a sparse gradient for a parameter that belongs to no torch::nn::Embedding or EmbeddingBag "
      "with sparse(true): use one of these, or sparse(false), also in Python before torch.export");
}

bool GradientBuffer::move_in(int parameter) {
  at::Tensor& grad = parameters_[parameter].mutable_grad();
  if (!grad.defined() || aliased(parameter)) return false;
  require_dense(parameter);
  detach_views(parameter);
  slots_[parameter].copy_(grad);
  grad = slots_[parameter];
  return true;
}

std::vector<int> GradientBuffer::move_in_together(const std::vector<int>& parameters) {
  const at::NoGradGuard no_grad;
  std::vector<int> moved;
  std::vector<at::Tensor> slots, gradients;
  for (const int parameter : parameters) {
    const at::Tensor& grad = parameters_[parameter].grad();
    if (!grad.defined() || aliased(parameter)) continue;
    require_dense(parameter);
    detach_views(parameter);
    moved.push_back(parameter);
    slots.push_back(slots_[parameter]);
    gradients.push_back(grad.detach());
  }
  if (moved.empty()) return moved;
  at::_foreach_copy_(slots, gradients, /*non_blocking=*/true);
  for (const int parameter : moved) parameters_[parameter].mutable_grad() = slots_[parameter];
  return moved;
}

void GradientBuffer::record_current_stream(at::Device device) const {
  for (const at::Tensor& memory : memory_) {
    if (memory.device() == device) devices::record_use_on_current_stream(memory);
  }
}

void GradientBuffer::alias(int parameter) {
  parameters_[parameter].mutable_grad() = slots_[parameter];
}

}  // namespace tutti::sync
