#include "tutti/data/readers/npy.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>

#include "data/readers/byte_order.h"
#include "data/readers/mapped_file.h"
#include "data/readers/npy_header.h"
#include "data/readers/rows.h"
#include "tutti/core/error.h"

namespace tutti {

namespace {

at::ScalarType dtype_of(const readers::NpyHeader& header) {
  switch (header.kind) {
    case 'b':
      return at::kBool;
    case 'i':
      return header.width == 1 ? at::kChar : header.width == 2 ? at::kShort : header.width == 4 ? at::kInt : at::kLong;
    case 'u':
      return header.width == 1   ? at::kByte
             : header.width == 2 ? at::kUInt16
             : header.width == 4 ? at::kUInt32
                                 : at::kUInt64;
    case 'f':
      return header.width == 2 ? at::kHalf : header.width == 4 ? at::kFloat : at::kDouble;
    default:
      return header.width == 8 ? at::kComplexFloat : at::kComplexDouble;
  }
}

void check_bools(std::span<const std::byte> elements) {
  const auto other = std::ranges::find_if(elements, [](std::byte element) { return element > std::byte{1}; });
  if (other == elements.end()) return;
  throw DataError("element " + std::to_string(other - elements.begin()) + " is neither True nor False");
}

at::Tensor array_in(const std::shared_ptr<readers::MappedFile>& file) {
  const readers::NpyHeader header = readers::parse_npy(file->bytes());
  const at::ScalarType dtype = dtype_of(header);
  if (header.kind == 'b') check_bools(file->bytes().subspan(header.data_offset));
  // A Fortran array is a C array with its dimensions reversed.
  auto shape = header.shape;
  if (header.fortran_order) std::ranges::reverse(shape);
  at::Tensor array;
  std::byte* elements = file->data() + header.data_offset;
  if (!header.swapped && header.data_offset % header.width == 0 && file->bytes().size() > header.data_offset) {
    array = at::from_blob(
        elements, shape, [file](void*) {}, at::TensorOptions(dtype));
  } else {
    array = at::empty(shape, dtype);
    if (array.numel() > 0) std::memcpy(array.mutable_data_ptr(), elements, array.nbytes());
    // A complex number is stored as two numbers.
    const auto width = header.kind == 'c' ? header.width / 2 : header.width;
    if (header.swapped) readers::swap_bytes({static_cast<std::byte*>(array.mutable_data_ptr()), array.nbytes()}, width);
  }
  if (!header.fortran_order) return array;
  std::vector<std::int64_t> reversed;
  for (auto i = array.dim(); i > 0; --i) reversed.push_back(i - 1);
  return array.permute(reversed).contiguous();
}

}  // namespace

at::Tensor read_npy(const std::filesystem::path& path) {
  const auto file = std::make_shared<readers::MappedFile>(path, true);
  return readers::with_file_name(path, [&file] { return array_in(file); });
}

NpyDataset::NpyDataset(const std::filesystem::path& data) : data_(read_npy(data)) {
  if (data_.dim() == 0) throw DataError(data.string() + ": is a scalar: it has no rows");
}

NpyDataset::NpyDataset(const std::filesystem::path& data, const std::filesystem::path& targets) : NpyDataset(data) {
  targets_ = read_npy(targets);
  if (targets_.dim() == 0) throw DataError(targets.string() + ": is a scalar: it has no rows");
  if (targets_.size(0) != data_.size(0)) {
    throw DataError(targets.string() + ": has " + std::to_string(targets_.size(0)) + " rows for the " +
                    std::to_string(data_.size(0)) + " of " + data.string());
  }
}

torch::data::Example<> NpyDataset::get_batch(c10::ArrayRef<std::size_t> indices) {
  return {readers::rows_of(data_, indices), targets_.defined() ? readers::rows_of(targets_, indices) : at::Tensor()};
}

std::optional<std::size_t> NpyDataset::size() const {
  return static_cast<std::size_t>(data_.size(0));
}

}  // namespace tutti
