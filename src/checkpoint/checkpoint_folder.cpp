#include "tutti/checkpoint/checkpoint_folder.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <set>
#include <string>
#include <system_error>
#include <tuple>
#include <utility>

#include "checkpoint/damaged.h"
#include "checkpoint/file.h"
#include "checkpoint/folder_names.h"
#include "checkpoint/manifest.h"
#include "checkpoint/prune.h"
#include "checkpoint/reservation.h"
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

std::vector<std::filesystem::path> CheckpointFolder::folders() const {
  std::vector<std::filesystem::path> found;
  for (const auto& entry : checkpoint::entries_of(path_)) {
    std::error_code ignored;
    if (!checkpoint::checkpoint_number(entry) || !checkpoint::name_exists(entry)) continue;
    if (std::filesystem::is_directory(entry, ignored)) found.push_back(entry);
  }
  std::ranges::sort(found, std::ranges::greater(), [](const std::filesystem::path& folder) {
    return std::pair(*checkpoint::checkpoint_numbers(folder), folder);
  });
  return found;
}

std::vector<CheckpointInfo> CheckpointFolder::all() const {
  std::vector<CheckpointInfo> checkpoints;
  for (const auto& folder : folders()) {
    // tutti gives a folder its final name last, so a folder without a manifest is not tutti's. An unreadable manifest
    // is an error: continuing silently with an older checkpoint would lose work.
    if (!checkpoint::name_exists(folder / checkpoint::manifest_name)) continue;
    try {
      checkpoints.push_back(read_checkpoint_info(folder));
    } catch (const checkpoint::DamagedCheckpointError&) {
      if (checkpoint::name_exists(folder)) throw;  // otherwise another job has removed it meanwhile
    }
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
  for (const auto& entry : checkpoint::entries_of(path_)) {
    number = std::max(number, checkpoint::checkpoint_number(entry).value_or(-1));
  }
  if (number == std::numeric_limits<std::int64_t>::max()) {
    throw CheckpointError(path_.string() +
                          " has a checkpoint of the largest number: remove it, or choose another folder");
  }
  return path_ / checkpoint::checkpoint_name(number + 1, step);
}

void CheckpointFolder::prune(const RetentionOptions& options, const std::string& run) const {
  checkpoint::prune(*this, options, run, checkpoint::FileSystem::system());
}

void checkpoint::prune(const CheckpointFolder& checkpoints, const RetentionOptions& options, const std::string& run,
                       const FileSystem& files) {
  std::vector<CheckpointInfo> of_run;
  if (options.keep_last) {
    for (const auto& folder : checkpoints.folders()) {
      try {
        CheckpointInfo info = read_checkpoint_info(folder);
        if (info.run == run) of_run.push_back(std::move(info));
      } catch (const CheckpointError&) {
        // Its run is unknown, so it is not removed.
      }
    }
  }
  const auto old = removable(std::move(of_run), options);
  std::set<std::filesystem::path> unfinished;
  for (const auto& entry : entries_of(checkpoints.path())) {
    if (is_leftover(entry)) unfinished.insert(*folder_of_hidden(entry));
  }
  for (const auto& folder : unfinished) {
    try {
      // A process that runs keeps its right to the name.
      if (const auto reservation = Reservation::try_take(folder, files)) reservation->remove_leftovers();
    } catch (const CheckpointError&) {
      // Perhaps of another user. The next prune() tries again.
    }
  }
  // Renamed first, so that a killed process leaves no partial checkpoint under a valid name.
  for (const CheckpointInfo& info : old) discard(info.folder, info.folder, files);
}

}  // namespace tutti
