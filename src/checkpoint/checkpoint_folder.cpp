#include "tutti/checkpoint/checkpoint_folder.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <system_error>
#include <tuple>
#include <utility>

#include "checkpoint/file.h"
#include "checkpoint/folder_names.h"
#include "checkpoint/manifest.h"
#include "tutti/core/error.h"

namespace tutti {
namespace {

// By the number in the name, which grows with every save, even if a run went back to an earlier step.
bool is_older(const CheckpointInfo& a, const CheckpointInfo& b) {
  const auto key = [](const CheckpointInfo& info) {
    return std::tuple(checkpoint::checkpoint_number(info.folder).value_or(-1), info.step, info.folder);
  };
  return key(a) < key(b);
}

const CheckpointInfo* best_of(const std::vector<CheckpointInfo>& oldest_first, bool lower_is_better) {
  const CheckpointInfo* best = nullptr;
  for (const CheckpointInfo& info : oldest_first) {
    if (!info.metric || std::isnan(*info.metric)) continue;
    if (best == nullptr || (lower_is_better ? *info.metric < *best->metric : *info.metric > *best->metric))
      best = &info;
  }
  return best;
}

std::vector<std::filesystem::path> entries_of(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> entries;
  std::error_code error;
  if (!std::filesystem::exists(folder, error)) return entries;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    entries.push_back(entry->path());
  }
  if (error) throw CheckpointError("cannot list " + folder.string() + ": " + error.message());
  return entries;
}

}  // namespace

std::vector<CheckpointInfo> removable(std::vector<CheckpointInfo> checkpoints, const RetentionOptions& options) {
  if (!options.keep_last) return {};
  if (*options.keep_last < 1)
    throw UsageError("keep_last is " + std::to_string(*options.keep_last) + ": keep at least 1");
  const auto keep = static_cast<std::size_t>(*options.keep_last);
  if (checkpoints.size() <= keep) return {};
  std::sort(checkpoints.begin(), checkpoints.end(), is_older);
  const CheckpointInfo* best = options.keep_best ? best_of(checkpoints, options.lower_is_better) : nullptr;
  std::vector<CheckpointInfo> result;
  for (std::size_t i = 0; i < checkpoints.size() - keep; ++i) {
    if (&checkpoints[i] != best) result.push_back(checkpoints[i]);
  }
  return result;
}

std::vector<CheckpointInfo> CheckpointFolder::all() const {
  std::vector<CheckpointInfo> checkpoints;
  for (const auto& entry : entries_of(path_)) {
    std::error_code ignored;
    if (!checkpoint::checkpoint_number(entry)) continue;
    // tutti gives a folder its final name last, so a folder without a manifest is not tutti's. An unreadable manifest
    // is an error: continuing silently with an older checkpoint would lose work.
    if (!std::filesystem::exists(entry / checkpoint::manifest_name, ignored)) continue;
    checkpoints.push_back(read_checkpoint_info(entry));
  }
  std::sort(checkpoints.begin(), checkpoints.end(), is_older);
  return checkpoints;
}

std::optional<CheckpointInfo> CheckpointFolder::newest() const {
  const auto checkpoints = all();
  if (checkpoints.empty()) return std::nullopt;
  return checkpoints.back();
}

std::filesystem::path CheckpointFolder::next(std::int64_t step) const {
  std::int64_t number = -1;
  for (const auto& entry : entries_of(path_)) {
    number = std::max(number, checkpoint::checkpoint_number(entry).value_or(-1));
  }
  return path_ / checkpoint::checkpoint_name(number + 1, step);
}

void CheckpointFolder::prune(const RetentionOptions& options, const std::string& run) const {
  auto of_run = all();
  std::erase_if(of_run, [&run](const CheckpointInfo& info) { return info.run != run; });
  const auto old = removable(std::move(of_run), options);
  for (const auto& entry : entries_of(path_)) {
    if (checkpoint::is_leftover(entry)) checkpoint::remove_folder(entry);
  }
  for (const CheckpointInfo& info : old) {
    // Renamed first, so that a killed process leaves no partial checkpoint under a valid name.
    const auto doomed = checkpoint::removed_of(info.folder);
    checkpoint::rename_and_sync(info.folder, doomed);
    checkpoint::remove_folder(doomed);
  }
}

}  // namespace tutti
