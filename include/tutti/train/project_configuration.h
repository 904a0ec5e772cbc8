#pragma once
// The folder of a run's files.
#include <filesystem>

#include "tutti/checkpoint/checkpoint_folder.h"

namespace tutti {

/// Accelerate's class of the same name. Every rank must pass the same. The folder must be on a file system that all
/// ranks share.
struct ProjectConfiguration {
  /// Checkpoints are named `DIR/checkpoints/checkpoint_<number>_step_<step>`. Empty: no automatic names.
  std::filesystem::path project_dir{};
  /// Which checkpoints of this run are kept. A run that loads a checkpoint of the folder continues that checkpoint's
  /// run. Checkpoints of other runs are never removed.
  RetentionOptions retention{};
};

}  // namespace tutti
