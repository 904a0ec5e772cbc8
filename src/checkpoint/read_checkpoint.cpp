#include <algorithm>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "checkpoint/damaged.h"
#include "checkpoint/file.h"
#include "checkpoint/manifest.h"
#include "checkpoint/safetensors_file.h"
#include "checkpoint/state_json.h"
#include "tutti/checkpoint/checkpoint.h"
#include "tutti/core/error.h"

namespace tutti {
namespace {

using checkpoint::FileDigest;
using nlohmann::json;

// Reads the files of the manifest, and throws if a file differs from what was written.
class Reader {
 public:
  explicit Reader(const std::filesystem::path& folder)
      : folder_(checkpoint::normalized(folder)), manifest_(checkpoint::read_manifest(folder_)) {}

  const checkpoint::Manifest& manifest() const { return manifest_; }
  CheckpointInfo info() const {
    return {.folder = folder_,
            .step = manifest_.step,
            .world_size = manifest_.world_size,
            .metric = manifest_.metric,
            .run = manifest_.run};
  }

  json read_json(const std::string& name) const {
    const FileDigest& expected = expect(name);
    const checkpoint::FileText file = checkpoint::read_text(folder_ / name, checkpoint::max_state_size);
    compare(name, file.digest, expected);
    try {
      json parsed = checkpoint::parse_json(file.text);
      if (parsed.is_object()) return parsed;
    } catch (const CheckpointError& error) {
      fail(name, std::string("was not written by tutti: ") + error.what());
    }
    fail(name, "was not written by tutti");
  }

  /// The values of one part, and the tensors that belong to it.
  StateDict read_part(const std::string& part, const std::string& file, const json& values) const {
    StateDict state;
    try {
      state = checkpoint::state_from_json(values);
    } catch (const CheckpointError& error) {
      fail(file, std::string("was not written by tutti: ") + error.what());
    }
    const std::string name = checkpoint::tensors_name(part);
    if (!manifest_.files.contains(name)) return state;
    const FileDigest& expected = expect(name);
    const auto [content, digest] = checkpoint::read_safetensors(folder_ / name);
    compare(name, digest, expected);
    for (const auto& [key, tensor] : content.tensors) state.set(key, tensor);
    for (const auto& [key, first] : content.metadata) {
      const auto tensor = content.tensors.find(first);
      if (tensor == content.tensors.end()) fail(name, "refers to a tensor that its file does not hold");
      state.set(key, tensor->second);
    }
    return state;
  }

 private:
  [[noreturn]] void fail(const std::string& name, const std::string& why) const {
    throw checkpoint::DamagedCheckpointError((folder_ / name).string() + " " + why +
                                             ". The checkpoint cannot be used; choose another checkpoint");
  }

  // Checks the size before reading, so that the error of a truncated file says so.
  const FileDigest& expect(const std::string& name) const {
    const auto entry = manifest_.files.find(name);
    if (entry == manifest_.files.end()) fail(name, "is not in the checkpoint's manifest");
    std::error_code error;
    const auto size = std::filesystem::file_size(folder_ / name, error);
    if (error == std::errc::no_such_file_or_directory) fail(name, "is missing");
    if (!error && size != entry->second.size) {  // reading reports the error
      fail(name, "has " + std::to_string(size) + " bytes, but was written with " + std::to_string(entry->second.size));
    }
    return entry->second;
  }

  void compare(const std::string& name, const FileDigest& actual, const FileDigest& expected) const {
    if (actual != expected) fail(name, "is damaged: its checksum differs from the one in the manifest");
  }

  std::filesystem::path folder_;
  checkpoint::Manifest manifest_;
};

}  // namespace

CheckpointInfo read_checkpoint_info(const std::filesystem::path& folder) {
  return Reader(folder).info();
}

Checkpoint read_checkpoint(const std::filesystem::path& folder, const std::optional<std::vector<int>>& ranks) {
  const Reader reader(folder);
  Checkpoint result{.info = reader.info()};
  const json shared = reader.read_json(checkpoint::state_name);
  for (const auto& [name, values] : shared.items()) {
    result.shared.emplace(name, reader.read_part(name, checkpoint::state_name, values));
  }
  const int world_size = reader.manifest().world_size;
  // The list of files bounds the number of ranks, so a damaged number does not allocate memory.
  if (static_cast<std::size_t>(world_size) > reader.manifest().files.size()) {
    throw checkpoint::DamagedCheckpointError(result.info.folder.string() + " lacks the files of some of its " +
                                             std::to_string(world_size) + " ranks; choose another checkpoint");
  }
  result.per_rank.resize(static_cast<std::size_t>(world_size));
  for (int rank = 0; rank < world_size; ++rank) {
    if (ranks && std::find(ranks->begin(), ranks->end(), rank) == ranks->end()) continue;
    const std::string file = checkpoint::rank_state_name(rank);
    result.per_rank[static_cast<std::size_t>(rank)] =
        reader.read_part(checkpoint::rank_part(rank), file, reader.read_json(file));
  }
  return result;
}

}  // namespace tutti
