#pragma once
// What a loader over a stream may be told.
#include <c10/core/Device.h>

#include <cstdint>
#include <optional>
#include <string>

#include "tutti/detail/data/loader_group.h"
#include "tutti/detail/data/stream_cursor.h"

namespace tutti {

/// What a StreamLoader is told. Every rank gives the same, but for `device`.
struct StreamLoaderOptions {
  /// Samples in this rank's micro-batch; with split_batches, in the micro-batches of all ranks together.
  std::int64_t batch_size = 1;
  /// Whether all ranks read one stream and keep a part each, or each has a stream of its own.
  StreamSharding sharding = StreamSharding::slices;
  /// Leave out a round in which a rank's batch is missing or not full.
  bool drop_last = false;
  /// UsageError unless the ranks divide batch_size.
  bool split_batches = false;
  /// All ranks receive as many batches. With StreamSharding::slices the last round is filled with the stream's first
  /// samples; with own streams loops end on all ranks where the first of them ends, and the rest is left out. If not,
  /// every sample is read once, and some ranks receive fewer batches (see JoinScope for training on such data).
  bool even_batches = true;
  /// 1: a thread calls get_batch() ahead. There can be no more, as a stream has an order.
  int num_workers = 0;
  /// Batches that it reads ahead, besides the two that every loop reads ahead.
  int prefetch_factor = 2;
  /// Where batches go: see to_device.h. Not set: they stay where the dataset makes them.
  std::optional<at::Device> device{};
  /// Start copies to a CUDA device from pinned memory, and do not wait for them: see Placement.
  bool non_blocking = false;
};

/// What a loader reads, in words: the same on ranks whose loaders belong together.
std::string describe(const StreamLoaderOptions& options);

/// Samples in this rank's micro-batch. Throws UsageError for options out of range or against one another, and where
/// ranks with streams of their own have no agreement.
std::int64_t checked_batch_size(const StreamLoaderOptions& options, const LoaderGroup& group);

}  // namespace tutti
