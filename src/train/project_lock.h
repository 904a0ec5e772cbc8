#pragma once
// Excludes two runs at the same time in one project folder. They would mix their metrics and remove each other's
// checkpoints, for example where a batch system starts a job again whose first instance still runs.
#include <filesystem>

#include "core/file_descriptor.h"

namespace tutti {

class ProjectLock {
 public:
  /// Creates the folder. Throws UsageError if another process, or another ProjectLock of this one, holds the lock, and
  /// CheckpointError if the lock file cannot be created. Excludes no process on a file system without locks.
  explicit ProjectLock(const std::filesystem::path& folder);

 private:
  FileDescriptor file_;  // the kernel releases the lock when the process exits
};

}  // namespace tutti
