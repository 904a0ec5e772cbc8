#include "tutti/detail/data/stream_cursor.h"

#include <string>
#include <utility>

#include "data/option_limits.h"
#include "tutti/core/error.h"

namespace tutti {

namespace {

std::string name_of(StreamSharding sharding) {
  return sharding == StreamSharding::slices ? "slices" : "own";
}

}  // namespace

StateDict StreamCursor::state_dict() const {
  StateDict state;
  save_read_state(state);
  state.set("stream", name_of(sharding_));
  return state;
}

void StreamCursor::load_state_dict(const StateDict& state) {
  const auto& saved = state.get<std::string>("stream");
  ReadState read_state = read_state_from(state);
  if (saved != name_of(sharding_) && !read_state.segments.empty()) {
    throw CheckpointError("the saved position in the stream has sharding " + saved + ", this loader has " +
                          name_of(sharding_) +
                          ": use the same loader options, or load a checkpoint between two epochs");
  }
  for (const EpochSegment& segment : read_state.segments) {
    if (segment.world_size < 1 || segment.batch_size < 1 || segment.batches < 0 ||
        segment.batches > most_skipped_batches) {
      throw CheckpointError("the saved position in the stream is damaged: " + std::to_string(segment.batches) +
                            " batches of " + std::to_string(segment.batch_size) + " on " +
                            std::to_string(segment.world_size) + " ranks");
    }
    if (sharding_ == StreamSharding::per_rank && segment.world_size != world_size()) {
      throw CheckpointError("the positions in the ranks' own streams were saved on " +
                            std::to_string(segment.world_size) + " ranks, and this job has " +
                            std::to_string(world_size()) +
                            ": start the same number of ranks, or load a checkpoint between two epochs");
    }
  }
  set_read_state(std::move(read_state));
}

}  // namespace tutti
