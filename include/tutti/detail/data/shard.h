#pragma once
// Which samples a rank reads, and in which order. No I/O: equal inputs give equal indices on every rank, without
// communication.
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "tutti/data/samplers.h"

namespace tutti {

/// The inputs that determine a rank's shard.
struct ShardOptions {
  std::int64_t dataset_size = 0;              ///< samples of an epoch, at least 1
  int rank = 0;                               ///< the shard's rank: 0 .. world_size - 1
  int world_size = 1;                         ///< number of shards
  bool shuffle = false;                       ///< see DataLoaderOptions::shuffle
  std::uint64_t seed = 0;                     ///< the same on all ranks; the epoch is added to it
  Sharding sharding = Sharding::interleaved;  ///< how samples are distributed
  /// Leave samples out rather than repeat some: see Sharding.
  bool drop_last = false;
  std::int64_t batch_size = 1;  ///< samples in a micro-batch
  /// Micro-batches of one rank in a window; used by blocks_by_window only.
  std::int64_t accumulation_steps = 1;
};

/// Micro-batches of an epoch that all ranks have read, and the sharding under which they were read.
struct EpochSegment {
  int world_size = 1;                   ///< ranks that read them
  std::int64_t batch_size = 1;          ///< samples in each
  std::int64_t accumulation_steps = 1;  ///< micro-batches of one rank in a window
  std::int64_t batches = 0;             ///< of each rank
};

constexpr std::int64_t divide_up(std::int64_t dividend, std::int64_t divisor) {
  return (dividend + divisor - 1) / divisor;
}

/// True if both were read under the same sharding, so that reading continues `a` with `b`.
bool same_sharding(const EpochSegment& a, const EpochSegment& b);

/// Number of samples that a rank reads in an epoch, or in the rest of one after `read`. Equal on every rank. It is 0 if
/// drop_last leaves no batch, or if every sample has been read. Throws UsageError for an empty dataset, options out of
/// range, and segments with more samples than the epoch has.
std::int64_t shard_size(const ShardOptions& options, std::span<const EpochSegment> read = {});

/// Number of micro-batches in shard_size() samples. Without drop_last the last one may be smaller.
std::int64_t shard_batches(const ShardOptions& options, std::span<const EpochSegment> read = {});

/// Number of samples in shard_size() that are not repeats. The repeats of the epoch's first samples are at the shard's
/// end. The number does not increase with the rank.
std::int64_t unique_shard_size(const ShardOptions& options, std::span<const EpochSegment> read = {});

/// The indices that this rank reads in an epoch, in order. With shuffle the samples are first permuted with
/// torch.randperm(dataset_size) under seed + epoch, as DistributedSampler does; the permutation takes 8 bytes a sample.
/// Copies share it.
class Shard {
 public:
  /// No samples.
  Shard() = default;
  /// `read` lists the segments that have been read, in order, all under the sharding and drop_last of `options`. If the
  /// last segment was sharded as `options` shard, the result continues it exactly. Otherwise the samples that no rank
  /// has read, in the epoch's order, are sharded like a whole epoch. If they do not fill all ranks, the epoch's first
  /// samples are repeated. Throws as shard_size().
  Shard(const ShardOptions& options, std::int64_t epoch, std::span<const EpochSegment> read = {});

  /// shard_size().
  std::int64_t size() const { return size_; }
  /// The index in the dataset of sample number 0 .. size() - 1. Thread safe.
  std::int64_t operator[](std::int64_t number) const;

 private:
  struct Order;

  std::shared_ptr<const Order> order_;
  std::int64_t size_ = 0;
};

}  // namespace tutti
