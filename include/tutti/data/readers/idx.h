#pragma once
// Files in the idx format, as MNIST, Fashion-MNIST, KMNIST and EMNIST come in (unpacked).
#include <ATen/core/TensorBody.h>

#include <filesystem>

namespace tutti {

/// The array in the file: uint8, int8, int16, int32, float or double. Throws DataError for a file that is missing, cut
/// off or no idx file.
at::Tensor read_idx(const std::filesystem::path& path);

}  // namespace tutti
