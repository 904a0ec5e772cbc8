#pragma once
// Files in the idx format, in which MNIST, Fashion-MNIST, KMNIST and EMNIST are distributed (after unpacking).
#include <ATen/core/TensorBody.h>

#include <filesystem>

namespace tutti {

/// Reads the array in the file: uint8, int8, int16, int32, float or double. Throws DataError for a file that is
/// missing, truncated, or not an idx file.
at::Tensor read_idx(const std::filesystem::path& path);

}  // namespace tutti
