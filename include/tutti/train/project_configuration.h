#pragma once
// Where a run keeps its files.
#include <filesystem>

#include "tutti/checkpoint/checkpoint_folder.h"

namespace tutti {

struct ProjectConfiguration {
  /// Checkpoints are named DIR/checkpoints/checkpoint_<number>. Empty: none are named automatically.
  std::filesystem::path project_dir{};
  /// Which checkpoints stay.
  RetentionOptions retention{};
};

}  // namespace tutti
