#pragma once
// Where a run keeps its files.
#include <filesystem>

#include "tutti/checkpoint/checkpoint_folder.h"

namespace tutti {

/// Accelerate's class of this name. Every rank gives the same; the folder is on a file system that all ranks share.
struct ProjectConfiguration {
  /// Checkpoints are named `DIR/checkpoints/checkpoint_<number>_step_<step>`. Empty: none are named automatically.
  std::filesystem::path project_dir{};
  /// Which of this run's checkpoints stay. A run that loads one of the folder's checkpoints goes on as that one's run;
  /// those of other runs are never removed.
  RetentionOptions retention{};
};

}  // namespace tutti
