#pragma once
// Where reading a stream stands.
#include "tutti/detail/data/loader_cursor.h"

namespace tutti {

/// How a stream's samples come to ranks.
enum class StreamSharding {
  /// The streams of all ranks are the same one. Every rank reads all of it and keeps batch r of each world_size
  /// batches, where r is its rank, as Accelerate's IterableDatasetShard.
  slices,
  /// Every rank's stream is its own part of the data already.
  per_rank,
};

class StreamCursor final : public LoaderCursor {
 public:
  StreamCursor(StreamSharding sharding, int world_size, std::int64_t batch_size)
      : LoaderCursor({.world_size = world_size, .batch_size = batch_size}),
        sharding_(sharding),
        world_size_(world_size) {}

  /// "epoch", "next_epoch", "segments.*" and "stream".
  StateDict state_dict() const override;
  /// The next begin() reads the stream from its start and leaves out what ranks had received. Throws CheckpointError
  /// for the state of another kind of loader, and with StreamSharding::per_rank for that of another number of ranks.
  void load_state_dict(const StateDict& state) override;

 private:
  StreamSharding sharding_;
  int world_size_;
};

}  // namespace tutti
