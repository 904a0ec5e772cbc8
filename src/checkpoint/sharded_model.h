#pragma once
// A model's tensors in several safetensors files with an index, as Hugging Face's libraries write and read them:
//
//   model-00001-of-00002.safetensors, model-00002-of-00002.safetensors
//   model.safetensors.index.json: {"metadata": {"total_size": BYTES}, "weight_map": {"fc.weight": FILE, ...}}
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

#include "tutti/checkpoint/safetensors.h"

namespace tutti::checkpoint {

/// Writes `content` to `path`, or, if it has more than `max_bytes` bytes of tensors, to files beside it. Then removes
/// the files that an earlier save to `path` left: the other form, and shards of other numbers. Throws UsageError, and
/// changes nothing, if a tensor cannot be saved.
void save_sharded(const std::filesystem::path& path, const Safetensors& content, std::uint64_t max_bytes);

/// Reads the tensors of a file, of an index, or of the index beside `path` if there is no file `path`. Throws
/// CheckpointError.
std::map<std::string, at::Tensor> load_sharded(const std::filesystem::path& path);

}  // namespace tutti::checkpoint
