#pragma once
// manifest.json: what a checkpoint consists of. It is written last, and a folder without it is no checkpoint.
//
//   {"crc32c": "1a2b3c4d",        of all bytes behind this comma
//    "files": {"model.safetensors": {"crc32c": "...", "size": 123}, ...},
//    "format": "tutti checkpoint", "metric": 0.5, "run": "5f0c...", "step": 12, "version": 1, "world_size": 2}
#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "checkpoint/file.h"
#include "tutti/checkpoint/checkpoint.h"

namespace tutti::checkpoint {

struct Manifest {
  std::int64_t step = 0;
  int world_size = 1;
  std::optional<double> metric{};
  std::string run{};
  /// By name within the folder.
  std::map<std::string, FileDigest> files{};
};

inline constexpr const char* manifest_name = "manifest.json";
inline constexpr const char* state_name = "state.json";

/// Names of files.
std::string tensors_name(const std::string& part);
std::string rank_part(int rank);
std::string rank_state_name(int rank);

/// Throws UsageError when a shared part cannot have this name.
void check_part_name(const std::string& name);

std::string manifest_text(const Manifest& manifest);
/// Throws CheckpointError.
Manifest parse_manifest(const std::string& text);

/// Reads the manifest of the checkpoint in `folder`. Throws CheckpointError naming the file.
Manifest read_manifest(const std::filesystem::path& folder);
CheckpointInfo info_of(const std::filesystem::path& folder, const Manifest& manifest);

}  // namespace tutti::checkpoint
