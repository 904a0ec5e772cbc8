#pragma once
// The error of a checkpoint that is not whole, apart from checkpoints that do not fit the program.
#include "tutti/core/error.h"

namespace tutti::checkpoint {

/// A file of the checkpoint is missing or damaged, so another checkpoint must be used.
class DamagedCheckpointError : public CheckpointError {
 public:
  using CheckpointError::CheckpointError;
};

}  // namespace tutti::checkpoint
