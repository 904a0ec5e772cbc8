#pragma once
// The options of a loader over a stream.
#include <c10/core/Device.h>

#include <cstdint>
#include <optional>
#include <string>

#include "tutti/detail/data/loader_group.h"
#include "tutti/detail/data/stream_cursor.h"

namespace tutti {

/// Options of a StreamLoader. Every rank must pass the same, except for `device`.
struct StreamLoaderOptions {
  /// Number of samples in this rank's micro-batch; with split_batches, in the micro-batches of all ranks together.
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
  /// Number of batches that it reads ahead, besides the two that every loop reads ahead.
  int prefetch_factor = 2;
  /// Device to move batches to, see to_device.h. Unset: batches stay on the device where the dataset creates them.
  std::optional<at::Device> device{};
  /// Copy to a CUDA device from pinned memory, asynchronously: see Placement.
  bool non_blocking = false;
};

/// A description of the options, equal on ranks whose loaders belong together.
std::string describe(const StreamLoaderOptions& options);

/// Number of samples in this rank's micro-batch. Throws UsageError if options are out of range or contradict one
/// another, and for StreamSharding::per_rank on several ranks without an agreement.
std::int64_t checked_batch_size(const StreamLoaderOptions& options, const LoaderGroup& group);

}  // namespace tutti
