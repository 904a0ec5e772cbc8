#pragma once
// Excludes two runs at the same time in one project folder. They would mix their metrics and remove each other's
// checkpoints, for example where a batch system starts a job again whose first instance still runs.
#include <filesystem>
#include <memory>

#include "core/file_descriptor.h"
#include "tutti/comm/communicator.h"

namespace tutti {

class ProjectLock {
 public:
  /// Creates the folder. Throws UsageError if another process, or another ProjectLock of this one, holds the lock, and
  /// CheckpointError if the lock file cannot be created. Excludes no process on a file system without locks.
  explicit ProjectLock(const std::filesystem::path& folder);
  /// Takes the lock on rank 0 and returns it there, null on the other ranks. Every rank must call it. Throws, on all
  /// ranks, the exceptions above, and CheckpointError if a rank does not see the lock file: the ranks' folders are on
  /// different file systems, and no checkpoint could be saved.
  static std::unique_ptr<ProjectLock> of_job(const std::filesystem::path& folder, const Communicator& communicator);

 private:
  FileDescriptor file_;  // the kernel releases the lock when the process exits
};

}  // namespace tutti
