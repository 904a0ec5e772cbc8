#pragma once
// Writes checkpoints while training goes on.
#include <filesystem>
#include <memory>

#include "tutti/checkpoint/checkpoint.h"
#include "tutti/checkpoint/checkpoint_folder.h"

namespace tutti {

/// One checkpoint at a time is written on a thread of its own, on a communicator of its own. Every rank makes one, and
/// calls its methods alike. One thread.
class CheckpointWriter {
 public:
  /// `communicator` is the writer's alone (Communicator::duplicate).
  explicit CheckpointWriter(Communicator communicator);
  /// Waits for what is being written; an error there is logged.
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  /// Copies `content` to memory of its own and returns; the checkpoint is written in the background, then
  /// `retention` is applied to this run's checkpoints in the folder that it stands in (on rank 0). Waits first for the
  /// one before, and throws what that one threw.
  void start(const std::filesystem::path& folder, const CheckpointContent& content, const RetentionOptions& retention);
  /// Blocks until everything is on disk. Throws what write_checkpoint() threw.
  void wait();

 private:
  class Job;

  Communicator communicator_;
  std::unique_ptr<Job> job_;
};

}  // namespace tutti
