#pragma once
// Writes checkpoints in the background, while training continues.
#include <filesystem>
#include <memory>

#include "tutti/checkpoint/checkpoint.h"
#include "tutti/checkpoint/checkpoint_folder.h"

namespace tutti {

namespace checkpoint {
class FileSystem;
class Reservation;
}  // namespace checkpoint

/// Writes one checkpoint at a time, on its own thread and communicator. Every rank must construct it and call the same
/// methods in the same order. Not thread safe.
class CheckpointWriter {
 public:
  /// No other code may use `communicator` (see Communicator::duplicate). `files`: null for the system's; must outlive
  /// the writer.
  explicit CheckpointWriter(Communicator communicator, const checkpoint::FileSystem* files = nullptr);
  /// Waits for the checkpoint that is being written; logs its error.
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  /// Waits for the previous checkpoint and rethrows its error. Then copies what this rank writes of `content`, and
  /// returns; copies from accelerators may still be in flight. If that fails on one rank, all ranks throw. A
  /// background thread writes the checkpoint; after that, rank 0 applies `retention` to this run's checkpoints in the
  /// parent folder. `reserved`: rank 0's right to write `folder`; null: the thread takes it.
  void start(const std::filesystem::path& folder, const CheckpointContent& content, const RetentionOptions& retention,
             std::shared_ptr<checkpoint::Reservation> reserved = nullptr);
  /// Blocks until the checkpoint is on disk. Rethrows the error of write_checkpoint().
  void wait();

 private:
  class Job;

  Communicator communicator_;
  const checkpoint::FileSystem* files_;
  std::unique_ptr<Job> job_;
};

}  // namespace tutti
