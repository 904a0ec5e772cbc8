#pragma once
// Which samples a rank reads, and in which order. Pure arithmetic: the same inputs give the same indices on every rank,
// without communication.
#include <cstdint>
#include <span>
#include <vector>

namespace tutti {

/// How one epoch's samples are dealt to ranks.
enum class Sharding {
  /// Rank r takes samples r, r + world_size, ... as PyTorch's DistributedSampler. Where they do not fill all ranks, the
  /// first ones are repeated at the end (or, with drop_last, the last ones are left out).
  interleaved,
  /// The samples, in order, form batches of batch_size; rank r takes batches r, r + world_size, ... as Accelerate's
  /// BatchSamplerShard. The last round is filled with the first samples to full batches (with drop_last: left out).
  batches,
  /// The samples, in order, form micro-batches of batch_size, and these form windows of accumulation_steps *
  /// world_size, one for each optimizer step. Rank r takes the r-th block of accumulation_steps micro-batches of each
  /// window. So a step sees the same micro-batches in the same order whatever the number of ranks, as long as the
  /// product of accumulation_steps and world_size stays. A short last window is filled with the first samples (with
  /// drop_last: cut) up to the next multiple of world_size full micro-batches, of which each rank takes an equal block.
  blocks_by_window,
};

/// What decides a rank's share.
struct ShardOptions {
  std::int64_t dataset_size = 0;              ///< samples of an epoch, at least 1
  int rank = 0;                               ///< whose share: 0 .. world_size - 1
  int world_size = 1;                         ///< ranks that share the samples
  bool shuffle = false;                       ///< see DataLoaderOptions::shuffle
  std::uint64_t seed = 0;                     ///< the same on all ranks; the epoch is added to it
  Sharding sharding = Sharding::interleaved;  ///< how samples are dealt
  /// Leave samples out rather than repeat some: see Sharding.
  bool drop_last = false;
  std::int64_t batch_size = 1;  ///< samples in a micro-batch
  /// Micro-batches of one rank in a window: only blocks_by_window heeds it.
  std::int64_t accumulation_steps = 1;
};

/// Micro-batches of an epoch that all ranks have read, and how they were dealt.
struct EpochSegment {
  int world_size = 1;                   ///< ranks that read them
  std::int64_t batch_size = 1;          ///< samples in each
  std::int64_t accumulation_steps = 1;  ///< micro-batches of one rank in a window
  std::int64_t batches = 0;             ///< of each rank
};

/// Whether `options` deal as `segment` was dealt, so that reading on continues it.
bool same_sharding(const EpochSegment& segment, const ShardOptions& options);

/// How many samples a rank reads in an epoch, or in what is left of one after `read`: the same number on every rank. It
/// can be 0 with drop_last, and where all has been read. Throws UsageError for an empty dataset, options out of range,
/// and segments that read more than there was.
std::int64_t shard_size(const ShardOptions& options, std::span<const EpochSegment> read = {});

/// The micro-batches of shard_size(): the last one need not be full, unless drop_last.
std::int64_t shard_batches(const ShardOptions& options, std::span<const EpochSegment> read = {});

/// How many of shard_size() samples are this rank's own; the others, at the end, repeat the epoch's first ones. No rank
/// has more than rank 0, none less than the last one.
std::int64_t unique_shard_size(const ShardOptions& options, std::span<const EpochSegment> read = {});

/// The indices that this rank reads in `epoch`, in order. With shuffle the samples are first put in the order of
/// torch.randperm(dataset_size) under seed + epoch, as DistributedSampler does.
///
/// After `read` (one segment after the other, all of them under the sharding and drop_last of `options`): where the
/// last segment was dealt as `options` deal, exactly what would have followed. Else the samples that no rank has read,
/// in the epoch's order, are dealt as if they were an epoch's; where they do not fill all ranks, the epoch's first
/// samples are repeated. Throws as shard_size.
std::vector<std::int64_t> shard_indices(const ShardOptions& options, std::int64_t epoch,
                                        std::span<const EpochSegment> read = {});

}  // namespace tutti
