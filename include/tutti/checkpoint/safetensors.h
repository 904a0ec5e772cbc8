#pragma once
// Files in the safetensors format, interchangeable with Python's safetensors.
// The format: https://github.com/huggingface/safetensors#format
#include <ATen/core/TensorBody.h>

#include <filesystem>
#include <map>
#include <string>

namespace tutti {

/// The content of a file.
struct Safetensors {
  /// Dense tensors of any shape, by name.
  std::map<std::string, at::Tensor> tensors{};
  /// Arbitrary texts by key (the format's "__metadata__").
  std::map<std::string, std::string> metadata{};
};

/// Writes `path` and syncs it to disk. A file of this name is replaced when the new one is complete. Tensors may have
/// any device and strides; the file is row-major. Throws UsageError for a dtype that the format does not support, and
/// CheckpointError if writing fails.
void save_safetensors(const std::filesystem::path& path, const Safetensors& content);

/// Reads all tensors of `path` to CPU memory that they own. Throws CheckpointError, with the reason, if the file
/// violates the format. Allocates no more memory than the size of the file allows.
Safetensors load_safetensors(const std::filesystem::path& path);

}  // namespace tutti
