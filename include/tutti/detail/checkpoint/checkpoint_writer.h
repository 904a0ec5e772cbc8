#pragma once
// Writes checkpoints in the background, while training continues.
#include <filesystem>
#include <memory>

#include "tutti/checkpoint/checkpoint.h"
#include "tutti/checkpoint/checkpoint_folder.h"

namespace tutti {

/// Writes one checkpoint at a time, on its own thread and communicator. Every rank must construct it and call the same
/// methods in the same order. Not thread safe.
class CheckpointWriter {
 public:
  /// No other code may use `communicator` (see Communicator::duplicate).
  explicit CheckpointWriter(Communicator communicator);
  /// Waits for the checkpoint that is being written; logs its error.
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  /// Waits for the previous checkpoint and rethrows its error. Then copies `content` and returns. A background thread
  /// writes the checkpoint; after that, rank 0 applies `retention` to this run's checkpoints in the parent folder.
  void start(const std::filesystem::path& folder, const CheckpointContent& content, const RetentionOptions& retention);
  /// Blocks until the checkpoint is on disk. Rethrows the error of write_checkpoint().
  void wait();

 private:
  class Job;

  Communicator communicator_;
  std::unique_ptr<Job> job_;
};

}  // namespace tutti
