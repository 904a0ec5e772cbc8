#pragma once
// Selects rows of a tensor by index.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/util/ArrayRef.h>

#include <cstddef>
#include <cstring>
#include <string>

#include "tutti/core/error.h"

namespace tutti::readers {

/// Returns a copy of these rows, in the given order. `from` must be contiguous and may have any dtype (index_select
/// supports fewer). Throws UsageError for a row out of range.
inline at::Tensor rows_of(const at::Tensor& from, c10::ArrayRef<std::size_t> rows) {
  auto sizes = from.sizes().vec();
  sizes[0] = static_cast<std::int64_t>(rows.size());
  at::Tensor to = at::empty(sizes, from.options());
  const auto count = static_cast<std::size_t>(from.size(0));
  const std::size_t bytes = count == 0 ? 0 : from.nbytes() / count;
  const auto* source = static_cast<const std::byte*>(from.const_data_ptr());
  auto* target = static_cast<std::byte*>(to.mutable_data_ptr());
  for (const std::size_t row : rows) {
    if (row >= count) {
      throw UsageError("sample " + std::to_string(row) + " of a dataset of " + std::to_string(count));
    }
    if (bytes > 0) std::memcpy(target, source + row * bytes, bytes);
    target += bytes;
  }
  return to;
}

}  // namespace tutti::readers
