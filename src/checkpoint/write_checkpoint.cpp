// Writes a checkpoint into a temporary folder and renames it once. This is the usual way to replace a file on POSIX
// systems (write, fsync, rename, fsync of the folder), for a folder with several writers.
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "checkpoint/agreement.h"
#include "checkpoint/file.h"
#include "checkpoint/folder_names.h"
#include "checkpoint/manifest.h"
#include "checkpoint/safetensors_file.h"
#include "checkpoint/state_json.h"
#include "checkpoint/tied_tensors.h"
#include "tutti/checkpoint/checkpoint.h"
#include "tutti/core/error.h"

namespace tutti {
namespace {

using checkpoint::FileDigest;
using nlohmann::json;
using Files = std::map<std::string, FileDigest>;

// Everything that one rank writes, checked and converted. A value that cannot be saved is found before any file is
// written.
struct Prepared {
  std::map<std::string, Safetensors> tensors{};
  std::map<std::string, std::string> texts{};
};

void add_tensors(Prepared& prepared, const std::string& part, const StateDict& state) {
  Safetensors content = checkpoint::without_ties(checkpoint::tensors_of(state));
  checkpoint::check_savable(content);
  if (!content.tensors.empty()) prepared.tensors.emplace(checkpoint::tensors_name(part), std::move(content));
}

Prepared prepare(const CheckpointContent& content, int rank) {
  for (const auto& [name, part] : content.shared) checkpoint::check_part_name(name);
  Prepared prepared;
  prepared.texts.emplace(checkpoint::rank_state_name(rank), checkpoint::to_json(content.per_rank).dump(1));
  add_tensors(prepared, checkpoint::rank_part(rank), content.per_rank);
  if (rank != 0) return prepared;
  json shared = json::object();
  for (const auto& [name, part] : content.shared) {
    shared[name] = checkpoint::to_json(part);
    add_tensors(prepared, name, part);
  }
  prepared.texts.emplace(checkpoint::state_name, shared.dump(1));
  return prepared;
}

Files write_files(const std::filesystem::path& folder, const Prepared& prepared) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(folder, ignored)) {
    throw CheckpointError(folder.string() +
                          ", which rank 0 created, does not exist on this rank: all ranks must share one file system");
  }
  Files files;
  for (const auto& [name, tensors] : prepared.tensors) {
    files.emplace(name, checkpoint::write_safetensors(folder / name, tensors));
  }
  for (const auto& [name, text] : prepared.texts) files.emplace(name, checkpoint::write_text(folder / name, text));
  checkpoint::sync_folder(folder);
  return files;
}

std::string to_text(const Files& files) {
  json object = json::object();
  for (const auto& [name, digest] : files) object[name] = {digest.size, digest.crc};
  return object.dump();
}

void add_files(Files& files, const std::string& text) {
  const json object = json::parse(text);
  for (const auto& [name, digest] : object.items()) {
    files.emplace(name,
                  FileDigest{.size = digest.at(0).get<std::uint64_t>(), .crc = digest.at(1).get<std::uint32_t>()});
  }
}

// Detects ranks on another file system, whose files would be missing when the checkpoint is read.
void check_presence(const std::filesystem::path& folder, const Files& files) {
  for (const auto& [name, digest] : files) {
    std::error_code error;
    const auto size = std::filesystem::file_size(folder / name, error);
    if (error || size != digest.size) {
      throw CheckpointError((folder / name).string() +
                            ", which another rank wrote, is missing or different on rank 0: all ranks must share one "
                            "file system");
    }
  }
}

// Different checkpoints would be mixed in one folder.
void check_agreement(const std::vector<std::string>& plans) {
  for (std::size_t rank = 1; rank < plans.size(); ++rank) {
    if (plans[rank] == plans[0]) continue;
    throw MismatchError("ranks write different checkpoints: rank 0 '" + plans[0] + "', rank " + std::to_string(rank) +
                        " '" + plans[rank] + "'; folder and step must be equal on all ranks");
  }
}

}  // namespace

void write_checkpoint(const std::filesystem::path& folder, const CheckpointContent& content,
                      const Communicator& communicator) {
  const int rank = communicator.rank();
  const auto target = checkpoint::normalized(folder);
  const auto partial = checkpoint::partial_of(target);
  const auto prepare_folder = [&] {
    std::error_code ignored;
    if (std::filesystem::exists(std::filesystem::symlink_status(target, ignored))) {
      throw UsageError(target.string() + " already exists: choose another name, or remove it");
    }
    checkpoint::remove_folder(partial);  // of an earlier attempt that was killed
    checkpoint::make_folders(partial);
  };

  try {
    Prepared prepared;
    const auto plans = checkpoint::on_all_ranks(communicator, "checkpoint: prepare", [&] {
      prepared = prepare(content, rank);
      if (rank == 0) prepare_folder();
      return target.filename().string() + ", step " + std::to_string(content.step);
    });
    check_agreement(plans);
    const auto written = checkpoint::on_all_ranks(communicator, "checkpoint: write",
                                                  [&] { return to_text(write_files(partial, prepared)); });
    checkpoint::on_all_ranks(communicator, "checkpoint: commit", [&]() -> std::string {
      if (rank != 0) return {};
      checkpoint::Manifest manifest{.step = content.step,
                                    .world_size = communicator.size(),
                                    .metric = content.metric,
                                    .run = content.run,
                                    .files = {}};
      for (const std::string& files : written) add_files(manifest.files, files);
      check_presence(partial, manifest.files);
      checkpoint::write_text(partial / checkpoint::manifest_name, checkpoint::manifest_text(manifest));
      checkpoint::sync_folder(partial);
      checkpoint::rename_and_sync(partial, target);
      return {};
    });
  } catch (const PeerError&) {
    throw;  // other ranks may still write to the folder
  } catch (const Error&) {
    std::error_code ignored;
    if (rank == 0) std::filesystem::remove_all(partial, ignored);
    throw;
  }
}

}  // namespace tutti
