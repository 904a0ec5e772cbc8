#pragma once
// Which samples a rank reads, and in which order. Pure arithmetic: the same inputs give the same indices on every rank,
// without communication.
#include <cstdint>
#include <vector>

namespace tutti {

/// How one epoch's samples are dealt to ranks.
enum class Sharding {
  /// Rank r takes samples r, r + world_size, ... as PyTorch's DistributedSampler. Where they do not fill all ranks, the
  /// first ones are repeated at the end (or, with drop_last, the last ones are left out).
  interleaved,
  /// The samples, in order, form micro-batches of batch_size, and these form windows of accumulation_steps *
  /// world_size,
  /// one for each optimizer step. Rank r takes the r-th block of accumulation_steps micro-batches of each window. So a
  /// step sees the same micro-batches in the same order whatever the number of ranks, as long as the product of
  /// accumulation_steps and world_size stays. A short last window is filled with the first samples (with drop_last:
  /// cut)
  /// up to the next multiple of world_size full micro-batches, of which each rank takes an equal block.
  blocks_by_window,
};

struct ShardOptions {
  std::int64_t dataset_size = 0;
  int rank = 0;
  int world_size = 1;
  bool shuffle = false;
  std::uint64_t seed = 0;  ///< the same on all ranks; the epoch is added to it
  Sharding sharding = Sharding::interleaved;
  /// Leave samples out rather than repeat some: see Sharding.
  bool drop_last = false;
  // Only for blocks_by_window:
  std::int64_t batch_size = 1;          ///< samples in a micro-batch
  std::int64_t accumulation_steps = 1;  ///< micro-batches of one rank in a window
};

/// How many samples a rank reads in an epoch: the same number on every rank. It can be 0 with drop_last. Throws
/// UsageError for an empty dataset and options out of range.
std::int64_t shard_size(const ShardOptions& options);

/// The indices that this rank reads in `epoch`, in order. With shuffle the samples are first put in the order of
/// torch.randperm(dataset_size) under seed + epoch, as DistributedSampler does. Throws as shard_size.
std::vector<std::int64_t> shard_indices(const ShardOptions& options, std::int64_t epoch);

}  // namespace tutti
