#pragma once
// What a loader over a map-style dataset may be told. The names are Accelerate's and PyTorch's.
#include <c10/core/Device.h>

#include <cstdint>
#include <optional>
#include <string>

#include "tutti/detail/data/epoch_cursor.h"

namespace tutti {

/// What a DataLoader is told. Every rank gives the same, but for `device`.
struct DataLoaderOptions {
  /// Samples in this rank's micro-batch; with split_batches, in the micro-batches of all ranks together.
  std::int64_t batch_size = 1;
  /// Put each epoch's samples in an order of its own: torch.randperm under seed + epoch.
  bool shuffle = false;
  /// Decides the order under `shuffle`; the same on all ranks. Unset: that of Accelerator::set_seed(), else 0.
  std::optional<std::uint64_t> seed{};
  /// Which samples a rank reads.
  Sharding sharding = Sharding::interleaved;
  /// Drop a last batch that is not full, and samples that do not fill all ranks. An error where nothing would be left.
  bool drop_last = false;
  /// Every rank reads its part of a batch of batch_size, so that the number of ranks does not change what a step sees.
  /// UsageError unless the ranks divide batch_size.
  bool split_batches = false;
  /// Repeat the epoch's first samples, so that all ranks receive as many batches. If not, every sample is read once,
  /// and where they do not fill all ranks some receive a shorter last batch, or one batch less (under blocks_by_window:
  /// up to a block less): see JoinScope for training on such data.
  bool even_batches = true;
  /// The samples of an epoch instead of all of them; excludes shuffle.
  Sampler sampler{};
  /// The batches of an epoch, which are dealt as they are; excludes sampler, shuffle, batch_size and split_batches.
  BatchSampler batch_sampler{};
  /// Threads that call get_batch() ahead, each on a copy of the dataset that is made when a loop begins. Worker i reads
  /// batches i, i + num_workers, ... of the loop. 0: batches are read when they are asked for.
  int num_workers = 0;
  /// Batches that each worker reads ahead.
  int prefetch_factor = 2;
  /// Where batches go: see to_device.h. Not set: they stay where the dataset makes them.
  std::optional<at::Device> device{};
  /// Start copies to a CUDA device from pinned memory, and do not wait for them: see Placement.
  bool non_blocking = false;
};

/// What a loader deals, in words: the same on ranks whose loaders belong together.
std::string describe(const DataLoaderOptions& options, std::int64_t dataset_size);

/// How a loader with these options deals on this rank; throws UsageError for options that contradict one another.
ShardOptions shard_options(const DataLoaderOptions& options, std::int64_t dataset_size, int rank, int world_size,
                           std::int64_t accumulation_steps);

}  // namespace tutti
