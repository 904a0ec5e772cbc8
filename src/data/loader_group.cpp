#include "tutti/detail/data/loader_group.h"

#include <string>

#include "tutti/core/error.h"

namespace tutti {

LoopStart loop_start(const LoaderGroup& group, const LoaderCursor& cursor, bool epochs_differ) {
  LoopStart start{.loader = group.loader, .epoch = epochs_differ ? cursor.next_epoch() : -1};
  for (const EpochSegment& segment : cursor.read_before()) start.batch += segment.batches;
  return start;
}

std::int64_t split_over(std::int64_t batch_size, int world_size) {
  if (world_size >= 1 && batch_size % world_size == 0) return batch_size / world_size;
  throw UsageError("split_batches: a batch_size of " + std::to_string(batch_size) + " cannot be split over " +
                   std::to_string(world_size) + " ranks: use a multiple of the number of ranks");
}

}  // namespace tutti
