#pragma once
#include <ATen/core/Tensor.h>

#include <filesystem>
#include <string>

#include "tutti/core/error.h"

namespace tutti::readers {

/// Throws DataError with `file` and the first of the uint8 `labels` that is not below `classes`. Throws it also if
/// there are no labels.
inline void check_labels(const at::Tensor& labels, int classes, const std::filesystem::path& file) {
  if (labels.numel() == 0) throw DataError(file.string() + ": has no samples");
  const at::Tensor plain = labels.contiguous();
  const auto* values = plain.const_data_ptr<std::uint8_t>();
  for (std::int64_t i = 0; i < plain.numel(); ++i) {
    if (values[i] < classes) continue;
    throw DataError(file.string() + ": sample " + std::to_string(i) + " has label " + std::to_string(values[i]) +
                    ", but labels are 0 .. " + std::to_string(classes - 1));
  }
}

}  // namespace tutti::readers
