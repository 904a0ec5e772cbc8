#pragma once
// One checkpoint: a folder that exists complete or not at all.
//
//   checkpoint_12_step_3000/
//     model.safetensors, optimizer.safetensors, ...   the tensors of each shared part (Python reads them)
//     state.json                                      everything else that all ranks share, by part
//     rank_0.safetensors, rank_0.json, ...            the state of each rank
//     manifest.json                                   format version, step, number of ranks; size and CRC-32C of
//                                                     every other file
//
// Ranks write into a temporary folder and sync it. Rank 0 renames it when the files of every rank exist. A folder with
// the checkpoint's name is therefore complete, even if the job is killed at any time. Format: docs/formats.md.
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tutti/comm/communicator.h"
#include "tutti/state/state_dict.h"

namespace tutti {

/// The content of a checkpoint.
struct CheckpointContent {
  std::int64_t step = 0;  ///< optimizer steps so far
  /// By part: "model", "optimizer", "scheduler", ... Equal on all ranks; rank 0 writes it. The name of a part becomes a
  /// file name: letters, digits, '_' and '-', but not "state", "manifest" or "rank_N" (UsageError).
  std::map<std::string, StateDict> shared{};
  /// The state of this rank alone: random state, cursors, pending gradients.
  StateDict per_rank{};
  /// The quality of the model, for example a validation loss. CheckpointFolder can keep the best.
  std::optional<double> metric{};
  /// The run that it belongs to, any text; rank 0 writes it. A resumed run keeps its text.
  std::string run{};
};

/// Writes the checkpoint `folder`. Every rank of `communicator` must call it, on a file system that all ranks share.
/// Throws UsageError if `folder` exists or another job writes it, and CheckpointError, naming the rank whose disk
/// failed; then all ranks throw, and the partial checkpoint is removed. Rethrows the errors of the communicator.
void write_checkpoint(const std::filesystem::path& folder, const CheckpointContent& content,
                      const Communicator& communicator);

/// The content of a manifest.
struct CheckpointInfo {
  std::filesystem::path folder{};  ///< the checkpoint's folder
  std::int64_t step = 0;           ///< optimizer steps before it
  int world_size = 1;              ///< number of ranks that wrote it
  std::optional<double> metric{};  ///< CheckpointContent::metric; unset if none was given
  std::string run{};               ///< CheckpointContent::run; empty if none was given
};
/// Reads the manifest of the checkpoint `folder`, and no other file. Throws CheckpointError if it is missing or
/// damaged.
CheckpointInfo read_checkpoint_info(const std::filesystem::path& folder);

/// A checkpoint, read and verified.
struct Checkpoint {
  /// The manifest.
  CheckpointInfo info{};
  /// By part: "model", "optimizer", "scheduler", ...
  std::map<std::string, StateDict> shared{};
  /// By rank; empty for ranks that were not requested.
  std::vector<StateDict> per_rank{};
};

/// Reads and verifies a checkpoint: the shared parts, and the state of each rank in `ranks` (nullopt: of all ranks).
/// Ranks that the checkpoint does not hold are ignored. Throws CheckpointError naming the file that is missing, damaged
/// or not written by tutti. Not a collective.
Checkpoint read_checkpoint(const std::filesystem::path& folder,
                           const std::optional<std::vector<int>>& ranks = std::nullopt);

}  // namespace tutti
