#pragma once
// The position of reading in a stream.
#include "tutti/detail/data/loader_cursor.h"

namespace tutti {

/// How the samples of a stream are distributed over ranks.
enum class StreamSharding {
  /// All ranks have the same stream. Every rank reads all of it and keeps batch r of each world_size batches, where r
  /// is its rank, as Accelerate's IterableDatasetShard does.
  slices,
  /// Each rank has its own stream: its own part of the data.
  per_rank,
};

class StreamCursor final : public LoaderCursor {
 public:
  StreamCursor(StreamSharding sharding, int world_size, std::int64_t batch_size)
      : LoaderCursor({.world_size = world_size, .batch_size = batch_size}), sharding_(sharding) {}

  /// "epoch", "next_epoch", "segments.*" and "stream".
  StateDict state_dict() const override;
  /// The next begin() reads the stream from its start and skips the batches that ranks had received. Throws
  /// CheckpointError for the state of another kind of loader. With StreamSharding::per_rank throws it also for another
  /// number of ranks.
  void load_state_dict(const StateDict& state) override;

 private:
  StreamSharding sharding_;
};

}  // namespace tutti
