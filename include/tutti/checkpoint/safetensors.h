#pragma once
// Files in the safetensors format: what Python's safetensors writes, this reads, and the other way round.
// The format: https://github.com/huggingface/safetensors#format
#include <ATen/core/TensorBody.h>

#include <filesystem>
#include <map>
#include <string>

namespace tutti {

/// What a file holds.
struct Safetensors {
  /// By name. Dense, of any shape.
  std::map<std::string, at::Tensor> tensors{};
  /// Free words of whoever wrote the file.
  std::map<std::string, std::string> metadata{};
};

/// Writes `path` in place and syncs it to disk; tensors of any device and strides, row-major in the file. Throws
/// UsageError for a dtype that the format has not, CheckpointError where the disk fails.
void save_safetensors(const std::filesystem::path& path, const Safetensors& content);

/// Reads all of `path` to CPU tensors that own their memory. Throws CheckpointError saying what is wrong with a file
/// that is not exactly what the format demands; the size of what it allocates is bounded by the file's own.
Safetensors load_safetensors(const std::filesystem::path& path);

}  // namespace tutti
