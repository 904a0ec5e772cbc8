#pragma once
// A folder of checkpoints: names, the newest checkpoint, removal of old ones.
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "tutti/checkpoint/checkpoint.h"

namespace tutti {

/// Which checkpoints CheckpointFolder::prune() keeps. By default all.
struct RetentionOptions {
  /// Number of newest checkpoints to keep, at least 1; nullopt: all.
  std::optional<int> keep_last{};
  /// Also keep the checkpoint with the best metric.
  bool keep_best = false;
  /// True if the lowest metric is the best.
  bool lower_is_better = true;
};

/// Returns those of `checkpoints` (in any order) that `options` does not keep. No I/O. The newest is always kept. Of
/// equal metrics the older checkpoint is the best; NaN is never the best.
std::vector<CheckpointInfo> removable(std::vector<CheckpointInfo> checkpoints, const RetentionOptions& options);

/// A folder whose checkpoints are named `checkpoint_<number>_step_<step>`. The number counts saves from 0 and continues
/// after the highest existing one, so the name of a resumed run's next checkpoint is free. Several jobs may write
/// checkpoints to one folder. Not thread safe.
class CheckpointFolder {
 public:
  /// `path` need not exist yet.
  explicit CheckpointFolder(std::filesystem::path path) : path_(std::move(path)) {}

  /// Complete checkpoints, oldest first. Partial checkpoints of killed runs are left out. Throws CheckpointError if a
  /// manifest is damaged.
  std::vector<CheckpointInfo> all() const;
  /// The folders with a checkpoint's name, newest first, whole or damaged. Reads no file. Throws CheckpointError if the
  /// path cannot be read.
  std::vector<std::filesystem::path> folders() const;
  /// The last of all(); nullopt if there is none.
  std::optional<CheckpointInfo> newest() const;
  /// The path of the next checkpoint, taken after optimizer step `step`.
  std::filesystem::path next(std::int64_t step) const;
  /// Removes the checkpoints of `run` (CheckpointInfo::run) that `options` does not keep, and partial checkpoints of
  /// processes that have exited. Checkpoints of other runs, and those whose manifest cannot be read, are neither
  /// removed nor counted. Call it after a save, not before, so that a complete checkpoint always exists.
  void prune(const RetentionOptions& options, const std::string& run = {}) const;

  /// The path that was passed to the constructor.
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace tutti
