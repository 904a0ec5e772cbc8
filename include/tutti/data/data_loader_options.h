#pragma once
// The options of loaders over map-style datasets and over streams. The names are Accelerate's and PyTorch's.
#include <c10/core/Device.h>

#include <concepts>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "tutti/core/error.h"
#include "tutti/detail/data/epoch_cursor.h"
#include "tutti/detail/data/loader_group.h"
#include "tutti/detail/data/stream_cursor.h"

namespace tutti {

/// Options of a DataLoader. Every rank must pass the same, except for `device`.
struct DataLoaderOptions {
  /// Number of samples in this rank's micro-batch; with split_batches, in the micro-batches of all ranks together. A
  /// rank's micro-batch has at most 2^31 - 1 samples.
  std::int64_t batch_size = 1;
  /// Permute the samples of each epoch with torch.randperm under seed + epoch.
  bool shuffle = false;
  /// Seed of `shuffle`, the same on all ranks. Unset: the seed of Accelerator::set_seed(), or 0.
  std::optional<std::uint64_t> seed{};
  /// Which samples a rank reads.
  Sharding sharding = Sharding::interleaved;
  /// Drop a last batch that is not full, and samples that do not fill all ranks. UsageError if no batch is left.
  bool drop_last = false;
  /// Every rank reads its part of a batch of batch_size, so the samples of a step do not depend on the number of ranks.
  /// UsageError unless batch_size is divisible by the number of ranks.
  bool split_batches = false;
  /// Repeat the epoch's first samples, so that all ranks receive the same number of batches. If false, every sample is
  /// read once. Samples that do not fill all ranks then leave some ranks with a shorter last batch or one batch less
  /// (blocks_by_window: up to a block less). See JoinScope for training on such data.
  bool even_batches = true;
  /// Returns the samples of an epoch, instead of all samples. Excludes shuffle.
  Sampler sampler{};
  /// Returns the batches of an epoch, which are distributed whole. Excludes sampler, shuffle, batch_size and
  /// split_batches.
  BatchSampler batch_sampler{};
  /// Number of threads that call get_batch() ahead. Each uses a copy of the dataset, made when a loop begins. Worker i
  /// reads batches i, i + num_workers, ... of the loop. 0: the loop's own thread reads each batch when it is needed. At
  /// most 1024.
  int num_workers = 0;
  /// Number of batches that each worker reads ahead, 1 to 16384.
  int prefetch_factor = 2;
  /// Device to move batches to, see to_device.h. Unset: batches stay on the device where the dataset creates them.
  std::optional<at::Device> device{};
  /// Copy to an accelerator from pinned memory, asynchronously: see Placement. With workers they fill pinned memory.
  bool non_blocking = true;
  /// The loader is for evaluation only: a backward pass in a loop over it throws UsageError. With
  /// AcceleratorOptions::reproducible its data need not fill steps, and its other options are free.
  bool evaluation = false;
};

/// `size` as a number of samples. Throws UsageError if it is negative or above 2^62.
template <std::integral Size>
std::int64_t checked_dataset_size(Size size) {
  constexpr std::int64_t limit = std::int64_t{1} << 62;
  if (std::cmp_greater_equal(size, 0) && std::cmp_less_equal(size, limit)) return static_cast<std::int64_t>(size);
  throw UsageError("the dataset's size() returned " + std::to_string(size) + ": it must be 0 to " +
                   std::to_string(limit) + " samples");
}

/// A description of dataset and options, equal on ranks whose loaders belong together.
std::string describe(const DataLoaderOptions& options, std::int64_t dataset_size);

/// The sharding of a loader with these options on this rank. Throws UsageError for options that contradict one another.
ShardOptions shard_options(const DataLoaderOptions& options, std::int64_t dataset_size, int rank, int world_size,
                           std::int64_t accumulation_steps);

/// Options of a StreamLoader. Every rank must pass the same, except for `device`.
struct StreamLoaderOptions {
  /// Number of samples in this rank's micro-batch; with split_batches, in the micro-batches of all ranks together. A
  /// rank's micro-batch has at most 2^31 - 1 samples.
  std::int64_t batch_size = 1;
  /// Whether all ranks read the same stream and each keeps its part, or each rank reads its own stream.
  StreamSharding sharding = StreamSharding::slices;
  /// Drop a round (one batch for each rank) in which a rank's batch is missing or not full.
  bool drop_last = false;
  /// Divide batch_size by the number of ranks. UsageError unless it is divisible.
  bool split_batches = false;
  /// All ranks receive the same number of batches. With StreamSharding::slices the last round is filled with the
  /// stream's first samples. With StreamSharding::per_rank all loops end where the first stream ends, and the rest of
  /// the other streams is dropped. If false, every sample is read once, and some ranks receive fewer batches (see
  /// JoinScope for training on such data).
  bool even_batches = true;
  /// 1: a thread calls get_batch() ahead. At most 1, because a stream is read in order.
  int num_workers = 0;
  /// Number of batches that it reads ahead, besides the two that every loop reads ahead; 1 to 16384.
  int prefetch_factor = 2;
  /// Device to move batches to, see to_device.h. Unset: batches stay on the device where the dataset creates them.
  std::optional<at::Device> device{};
  /// Copy to an accelerator from pinned memory, asynchronously: see Placement. With workers they fill pinned memory.
  bool non_blocking = true;
  /// The loader is for evaluation only: a backward pass in a loop over it throws UsageError. With
  /// AcceleratorOptions::reproducible its data need not fill steps, and its other options are free.
  bool evaluation = false;
};

/// A description of the options, equal on ranks whose loaders belong together.
std::string describe(const StreamLoaderOptions& options);

/// Number of samples in this rank's micro-batch. Throws UsageError if options are out of range or contradict one
/// another, and for StreamSharding::per_rank on several ranks without an agreement.
std::int64_t checked_batch_size(const StreamLoaderOptions& options, const LoaderGroup& group);

}  // namespace tutti
