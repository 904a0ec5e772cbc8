#pragma once
// Safetensors files with their digests, for checkpoints.
#include <filesystem>
#include <string>

#include "checkpoint/file.h"
#include "checkpoint/safetensors_layout.h"
#include "tutti/checkpoint/safetensors.h"

namespace tutti::checkpoint {

/// Throws UsageError naming a tensor that the format cannot hold: undefined, sparse, an unsupported dtype, or a name
/// that is reserved or not UTF-8.
void check_savable(const Safetensors& content);

/// save_safetensors() that returns the digest of the file.
FileDigest write_safetensors(const std::filesystem::path& path, const Safetensors& content,
                             const FileSystem& files = FileSystem::system());

/// Reads the header of `file`, up to its data. `path` is for messages. Throws DamagedCheckpointError.
SafetensorsLayout read_layout(InputFile& file, const std::filesystem::path& path);

struct ReadSafetensors {
  Safetensors content{};
  FileDigest digest{};
};
/// load_safetensors() that also returns the digest of the file.
ReadSafetensors read_safetensors(const std::filesystem::path& path);

}  // namespace tutti::checkpoint
