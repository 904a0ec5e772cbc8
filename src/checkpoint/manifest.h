#pragma once
// manifest.json: the list of a checkpoint's files. It is written last; a folder without it is not a checkpoint.
//
//   {"crc32c": "1a2b3c4d",        of all bytes after this comma
//    "files": {"model.safetensors": {"crc32c": "...", "size": 123}, ...},
//    "format": "tutti checkpoint", "metric": 0.5, "run": "5f0c...", "step": 12, "version": 1, "world_size": 2}
#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "checkpoint/file.h"

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
/// A manifest has about 150 bytes for each rank.
inline constexpr std::uint64_t max_manifest_size = std::uint64_t{64} << 20;
/// The largest state.json and rank_N.json. Tensors are in other files.
inline constexpr std::uint64_t max_state_size = std::uint64_t{256} << 20;
inline constexpr const char* state_name = "state.json";

/// File names.
std::string tensors_name(const std::string& part);
std::string rank_part(int rank);
std::string rank_state_name(int rank);

/// Throws UsageError if `name` cannot be the name of a shared part.
void check_part_name(const std::string& name);

std::string manifest_text(const Manifest& manifest);
/// Throws DamagedCheckpointError if `text` is damaged, and CheckpointError if it has another format or version.
Manifest parse_manifest(const std::string& text);

/// Reads the manifest of the checkpoint in `folder`. Throws as parse_manifest() does, naming the file, and
/// DamagedCheckpointError if the file is missing or longer than max_manifest_size.
Manifest read_manifest(const std::filesystem::path& folder);

}  // namespace tutti::checkpoint
