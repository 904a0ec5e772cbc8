#pragma once
// A folder of checkpoints: their names, which is the newest, which may go.
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "tutti/checkpoint/checkpoint.h"

namespace tutti {

/// Which checkpoints stay. By default all do.
struct RetentionOptions {
  /// Keep this many of the newest; all when nullopt. At least 1.
  std::optional<int> keep_last{};
  /// Besides these keep the one with the best metric.
  bool keep_best = false;
  /// Whether the best metric is the lowest one.
  bool lower_is_better = true;
};

/// Which of `checkpoints` (any order) may be removed. Pure. The newest always stays; of equal metrics the older one is
/// the best; NaN is never the best.
std::vector<CheckpointInfo> removable(std::vector<CheckpointInfo> checkpoints, const RetentionOptions& options);

/// Checkpoints in `path` are named `checkpoint_<number>_step_<step>`, the number counting saves from 0 and going on
/// after the highest that is there, so that a resumed run never meets a name that is taken. Not thread safe; one
/// process.
class CheckpointFolder {
 public:
  /// `path` need not be there yet.
  explicit CheckpointFolder(std::filesystem::path path) : path_(std::move(path)) {}

  /// Complete checkpoints, oldest first. What a killed run left half-written does not count.
  std::vector<CheckpointInfo> all() const;
  /// The last of all(); nullopt where there is none.
  std::optional<CheckpointInfo> newest() const;
  /// The name of the next one, which is of this optimizer step.
  std::filesystem::path next(std::int64_t step) const;
  /// Removes what `options` does not keep of the checkpoints of one run (CheckpointInfo::run), and what killed runs
  /// left half-written. Those of other runs stay, and do not count. To be called after a save, never before: there is
  /// always a complete checkpoint.
  void prune(const RetentionOptions& options, const std::string& run = {}) const;

  /// The folder that it was made over.
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace tutti
