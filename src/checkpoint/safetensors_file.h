#pragma once
// Safetensors files with their digests, as checkpoints need them.
#include <filesystem>
#include <string>

#include "checkpoint/file.h"
#include "checkpoint/safetensors_layout.h"
#include "tutti/checkpoint/safetensors.h"

namespace tutti::checkpoint {

/// Throws UsageError naming the tensor when the format cannot hold it: undefined, sparse, an unknown dtype, a name that
/// is not UTF-8 or taken.
void check_savable(const Safetensors& content);

/// save_safetensors(), and what was written.
FileDigest write_safetensors(const std::filesystem::path& path, const Safetensors& content);

/// Reads `file`, which lies at `path`, up to its data. Throws CheckpointError.
SafetensorsLayout read_layout(InputFile& file, const std::filesystem::path& path);

struct ReadSafetensors {
  Safetensors content{};
  FileDigest digest{};
};
/// load_safetensors(), and what was read.
ReadSafetensors read_safetensors(const std::filesystem::path& path);

}  // namespace tutti::checkpoint
