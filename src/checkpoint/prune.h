#pragma once
// CheckpointFolder::prune() with a file system.
#include <string>

#include "checkpoint/file_system.h"
#include "tutti/checkpoint/checkpoint_folder.h"

namespace tutti::checkpoint {

void prune(const CheckpointFolder& checkpoints, const RetentionOptions& options, const std::string& run,
           const FileSystem& files);

}  // namespace tutti::checkpoint
