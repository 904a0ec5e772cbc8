#include "tutti/data/readers/mnist.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <cstring>

#include "data/readers/byte_order.h"
#include "data/readers/idx_header.h"
#include "data/readers/mapped_file.h"

namespace tutti {

namespace {

at::ScalarType dtype_of(readers::IdxType type) {
  switch (type) {
    case readers::IdxType::unsigned_byte:
      return at::kByte;
    case readers::IdxType::signed_byte:
      return at::kChar;
    case readers::IdxType::int16:
      return at::kShort;
    case readers::IdxType::int32:
      return at::kInt;
    case readers::IdxType::float32:
      return at::kFloat;
    case readers::IdxType::float64:
      return at::kDouble;
  }
  return at::kByte;
}

}  // namespace

at::Tensor read_idx(const std::filesystem::path& path) {
  const readers::MappedFile file(path);
  const auto header = readers::with_file_name(path, [&file] { return readers::parse_idx(file.bytes()); });
  const at::Tensor array = at::empty(header.shape, dtype_of(header.type));
  if (array.numel() == 0) return array;
  auto* memory = static_cast<std::byte*>(array.mutable_data_ptr());
  std::memcpy(memory, file.bytes().data() + header.data_offset, array.nbytes());
  const auto width = readers::width_of(header.type);
  if (width > 1) readers::swap_bytes({memory, array.nbytes()}, width);
  return array;
}

}  // namespace tutti
