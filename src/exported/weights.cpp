#include "exported/weights.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <tuple>
#include <utility>

#include "exported/values.h"
#include "tutti/core/error.h"

namespace tutti::exported {
namespace {

using Numbers = std::vector<std::int64_t>;

Numbers numbers_of(const std::vector<SymInt>& sizes, const std::string& name) {
  Numbers numbers;
  for (const SymInt& size : sizes) {
    if (!size.expression.empty() || size.value < 0)
      throw CheckpointError("a size, stride or offset of '" + name + "' is negative or symbolic");
    numbers.push_back(size.value);
  }
  return numbers;
}

// Returns the number of elements from the beginning of the record to the last element of a tensor.
std::uint64_t extent_of(const Numbers& sizes, const Numbers& strides, std::int64_t offset, const Weight& weight,
                        const std::string& name) {
  const auto too_large = [&] { throw CheckpointError("the sizes or strides of '" + name + "' are too large"); };
  const auto width = static_cast<std::int64_t>(c10::elementSize(scalar_type_of(weight.meta.dtype)));
  std::int64_t last = offset, bytes = width;
  bool empty = false;
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    std::int64_t reach = 0;
    if (sizes[d] == 0) {
      empty = true;
      continue;
    }
    if (__builtin_mul_overflow(bytes, sizes[d], &bytes) || __builtin_mul_overflow(sizes[d] - 1, strides[d], &reach) ||
        __builtin_add_overflow(last, reach, &last)) {
      too_large();
    }
  }
  if (empty) return 0;
  if (__builtin_add_overflow(last, 1, &last)) too_large();
  // With a stride of 0, as after expand(), elements share memory. An optimizer would change them several times.
  if (weight.is_parameter && bytes / width > last) throw CheckpointError("elements of '" + name + "' share memory");
  return static_cast<std::uint64_t>(last);
}

at::Tensor bytes_of(const Archive& archive, const std::string& record) {
  const std::uint64_t size = archive.size_of(record);
  at::Tensor bytes = at::empty({static_cast<std::int64_t>(size)}, at::TensorOptions(at::kByte));
  archive.read(record, {static_cast<std::byte*>(bytes.data_ptr()), static_cast<std::size_t>(size)});
  return bytes;
}

at::Tensor view_of(const at::Tensor& bytes, const Weight& weight, const std::string& name) {
  const TensorMeta& meta = weight.meta;
  const Numbers sizes = numbers_of(meta.sizes, name), strides = numbers_of(meta.strides, name);
  const std::int64_t offset = numbers_of({meta.offset}, name).front();
  constexpr std::size_t max_dimensions = 64;
  if (sizes.size() != strides.size() || sizes.size() > max_dimensions) {
    throw CheckpointError("'" + name + "' has " + std::to_string(sizes.size()) + " sizes and " +
                          std::to_string(strides.size()) + " strides");
  }
  layout_of(meta.layout);
  const c10::ScalarType type = scalar_type_of(meta.dtype);
  const std::uint64_t extent = extent_of(sizes, strides, offset, weight, name);
  if (extent > bytes.nbytes() / c10::elementSize(type)) {
    throw CheckpointError("'" + name + "' reaches over " + std::to_string(extent) + " elements of " +
                          c10::toString(type) + ", but '" + weight.record + "' has " + std::to_string(bytes.nbytes()) +
                          " bytes");
  }
  if (extent == 0) return at::empty(sizes, at::TensorOptions(type));
  return at::empty({0}, at::TensorOptions(type)).set_(bytes.storage(), offset, sizes, strides);
}

}  // namespace

std::map<std::string, LoadedTensor> load_tensors(const Archive& archive, const std::string& folder,
                                                 const std::map<std::string, Weight>& weights) {
  std::map<std::string, at::Tensor> records;
  std::map<std::tuple<std::string, std::int64_t, Numbers, Numbers, std::int64_t>, at::Tensor> views;
  std::map<std::string, LoadedTensor> loaded;
  for (const auto& [name, weight] : weights) {
    at::Tensor& bytes = records[weight.record];
    if (!bytes.defined()) bytes = bytes_of(archive, folder + weight.record);
    at::Tensor view = view_of(bytes, weight, name);
    at::Tensor& known =
        views[{weight.record, weight.meta.dtype, view.sizes().vec(), view.strides().vec(), view.storage_offset()}];
    if (!known.defined()) known = view;
    const bool trained = weight.is_parameter && weight.meta.requires_grad;
    if (trained && !known.is_floating_point() && !known.is_complex()) {
      throw CheckpointError("parameter '" + name + "' has an integer dtype but requires a gradient");
    }
    loaded[name] = {
        .tensor = known, .is_parameter = weight.is_parameter, .requires_grad = trained, .device = weight.meta.device};
  }
  return loaded;
}

}  // namespace tutti::exported
