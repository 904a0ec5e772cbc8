// Writes a checkpoint into a temporary folder and renames it once. This is the usual way to replace a file on POSIX
// systems (write, fsync, rename, fsync of the folder), for a folder with several writers.
#include "checkpoint/write_checkpoint.h"

#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "checkpoint/agreement.h"
#include "checkpoint/file.h"
#include "checkpoint/manifest.h"
#include "checkpoint/safetensors_file.h"
#include "checkpoint/state_json.h"
#include "checkpoint/tied_tensors.h"
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

void add_text(Prepared& prepared, const std::string& name, const json& values) {
  std::string text = values.dump(1);
  if (text.size() > checkpoint::max_state_size) {
    throw UsageError("the values for " + name + " take " + std::to_string(text.size()) + " bytes; the limit is " +
                     std::to_string(checkpoint::max_state_size) + ": save long lists as tensors");
  }
  prepared.texts.emplace(name, std::move(text));
}

Prepared prepare(const CheckpointContent& content, int rank) {
  for (const auto& [name, part] : content.shared) checkpoint::check_part_name(name);
  Prepared prepared;
  add_text(prepared, checkpoint::rank_state_name(rank), checkpoint::to_json(content.per_rank));
  add_tensors(prepared, checkpoint::rank_part(rank), content.per_rank);
  if (rank != 0) return prepared;
  json shared = json::object();
  for (const auto& [name, part] : content.shared) {
    shared[name] = checkpoint::to_json(part);
    add_tensors(prepared, name, part);
  }
  add_text(prepared, checkpoint::state_name, shared);
  return prepared;
}

Files write_files(const std::filesystem::path& folder, const Prepared& prepared, const checkpoint::FileSystem& disk) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(folder, ignored)) {
    throw CheckpointError(folder.string() +
                          ", which rank 0 created, does not exist on this rank: all ranks must share one file system");
  }
  Files files;
  for (const auto& [name, tensors] : prepared.tensors) {
    files.emplace(name, checkpoint::write_safetensors(folder / name, tensors, disk));
  }
  for (const auto& [name, text] : prepared.texts) {
    files.emplace(name, checkpoint::write_text(folder / name, text, disk));
  }
  checkpoint::sync_folder(folder, disk);
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

// What a rank is about to write. Rank 0 adds the name of the partial folder in a second line.
struct Plan {
  std::string checkpoint;
  std::string partial;
};

Plan plan_of(const std::string& text) {
  const auto end = text.find('\n');
  return {.checkpoint = text.substr(0, end), .partial = end == std::string::npos ? "" : text.substr(end + 1)};
}

// Different checkpoints would be mixed in one folder. Returns the name of the partial folder.
std::string agree_on_partial(const std::vector<std::string>& plans) {
  const Plan first = plan_of(plans[0]);
  for (std::size_t rank = 1; rank < plans.size(); ++rank) {
    if (plans[rank] == first.checkpoint) continue;
    throw MismatchError("ranks write different checkpoints: rank 0 '" + first.checkpoint + "', rank " +
                        std::to_string(rank) + " '" + plans[rank] + "'; folder and step must be equal on all ranks");
  }
  return first.partial;
}

// `folder` and `step` identify the checkpoint; a name in a plan must not contain the separator.
std::string plan_text(const std::filesystem::path& folder, std::int64_t step) {
  std::string name = folder.filename().string();
  if (name.find('\n') != std::string::npos) throw UsageError("a checkpoint's name must not contain a line break");
  return name + ", step " + std::to_string(step);
}

}  // namespace

void write_checkpoint(const std::filesystem::path& folder, const CheckpointContent& content,
                      const Communicator& communicator) {
  checkpoint::write_checkpoint(folder, content, communicator, checkpoint::FileSystem::system());
}

void checkpoint::write_checkpoint(const std::filesystem::path& folder, const CheckpointContent& content,
                                  const Communicator& communicator, const FileSystem& disk,
                                  std::shared_ptr<Reservation> reserved) {
  const int rank = communicator.rank();
  const auto target = normalized(folder);
  try {
    Prepared prepared;
    const auto plans = on_all_ranks(communicator, "checkpoint: prepare", [&] {
      prepared = prepare(content, rank);
      const std::string plan = plan_text(target, content.step);
      if (rank != 0) return plan;
      if (!reserved) reserved = std::make_shared<Reservation>(Reservation::take(target, disk));
      reserved->make_partial();
      return plan + '\n' + reserved->partial().filename().string();
    });
    const auto partial = target.parent_path() / agree_on_partial(plans);
    const auto written =
        on_all_ranks(communicator, "checkpoint: write", [&] { return to_text(write_files(partial, prepared, disk)); });
    on_all_ranks(communicator, "checkpoint: commit", [&]() -> std::string {
      if (rank != 0) return {};
      Manifest manifest{.step = content.step,
                        .world_size = communicator.size(),
                        .metric = content.metric,
                        .run = content.run,
                        .files = {}};
      for (const std::string& files : written) add_files(manifest.files, files);
      check_presence(partial, manifest.files);
      write_text(partial / manifest_name, manifest_text(manifest), disk);
      sync_folder(partial, disk);
      reserved->commit();
      return {};
    });
  } catch (const PeerError&) {
    if (reserved) reserved->abandon();  // other ranks may still write to the folder
    throw;
  }
}

}  // namespace tutti
