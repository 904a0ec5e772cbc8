#pragma once
// A model's tensors in several safetensors files with an index, as Hugging Face's libraries write and read them:
//
//   model-00001-of-00002.safetensors, model-00002-of-00002.safetensors
//   model.safetensors.index.json: {"metadata": {"total_size": BYTES}, "weight_map": {"fc.weight": FILE, ...}}
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "tutti/checkpoint/safetensors.h"

namespace tutti::checkpoint {

/// Divides the tensors, in the order of their names, into parts of at most `max_bytes` bytes. A larger tensor has a
/// part of its own. The part of a tied tensor has its entry of the metadata; other entries are in every part.
std::vector<Safetensors> divide(const Safetensors& content, std::uint64_t max_bytes);

/// Writes `content` to `path`, or, if it has more than `max_bytes` bytes of tensors, to files beside it. Then removes
/// the files that an earlier save to `path` left: the other form, and shards of other numbers.
void save_sharded(const std::filesystem::path& path, const Safetensors& content, std::uint64_t max_bytes);

/// Reads the tensors of a file, of an index, or of the index beside `path` if there is no file `path`. Throws
/// CheckpointError.
std::map<std::string, at::Tensor> load_sharded(const std::filesystem::path& path);

}  // namespace tutti::checkpoint
