#pragma once
// One checkpoint: a folder that is there as a whole or not at all.
//
//   checkpoint_12_step_3000/
//     model.safetensors, optimizer.safetensors, ...   the tensors of each shared part (Python reads them)
//     state.json                                      everything else that all ranks share, by part
//     rank_0.safetensors, rank_0.json, ...            what is each rank's own
//     manifest.json                                   format version, step, number of ranks; size and CRC-32C of
//                                                     every other file
//
// It is written into a folder of another name, synced, and renamed when every rank's files are there: whatever kills
// the job, a folder with the checkpoint's name is complete. See docs/formats.md.
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tutti/comm/communicator.h"
#include "tutti/state/state_dict.h"

namespace tutti {

/// What a checkpoint is made of.
struct CheckpointContent {
  std::int64_t step = 0;  ///< optimizer steps so far
  /// By part: "model", "optimizer", "scheduler", ... Equal on all ranks; rank 0's is written. Names of parts are file
  /// names: letters, digits, '_' and '-', and not "state", "manifest" or "rank_N" (UsageError).
  std::map<std::string, StateDict> shared{};
  /// This rank's own: random state, cursors, pending gradients.
  StateDict per_rank{};
  /// What it is worth (a validation loss, say); lets CheckpointFolder keep the best.
  std::optional<double> metric{};
  /// Which run it belongs to, any text; rank 0's is written. A run that is resumed keeps it.
  std::string run{};
};

/// Writes the checkpoint `folder`. Every rank of `communicator` must call it, on a file system that all of them share.
/// Throws UsageError when `folder` exists, CheckpointError naming the rank whose disk failed (on all ranks; nothing is
/// left of it), and what the Communicator throws.
void write_checkpoint(const std::filesystem::path& folder, const CheckpointContent& content,
                      const Communicator& communicator);

/// What the manifest says, without reading the rest.
struct CheckpointInfo {
  std::filesystem::path folder{};  ///< where it is
  std::int64_t step = 0;           ///< optimizer steps before it
  int world_size = 1;              ///< ranks that wrote it
  std::optional<double> metric{};  ///< what it was worth; unset where it was not told
  std::string run{};               ///< empty where it was not told
};
/// Reads the manifest of the checkpoint `folder`. Throws CheckpointError where it is missing or damaged.
CheckpointInfo read_checkpoint_info(const std::filesystem::path& folder);

/// A checkpoint, read and verified.
struct Checkpoint {
  /// What the manifest says.
  CheckpointInfo info{};
  /// By part: "model", "optimizer", "scheduler", ...
  std::map<std::string, StateDict> shared{};
  /// By rank; those that were not asked for are empty.
  std::vector<StateDict> per_rank{};
};

/// Reads and verifies a checkpoint: shared parts, and the own parts of `ranks` (all when nullopt; those that the
/// checkpoint has not are left out). Throws CheckpointError naming the file for anything missing, damaged or foreign.
Checkpoint read_checkpoint(const std::filesystem::path& folder,
                           const std::optional<std::vector<int>>& ranks = std::nullopt);

}  // namespace tutti
