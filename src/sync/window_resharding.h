#pragma once
// Re-shards saved windows to another number of ranks. No I/O.
#include <span>

#include "tutti/state/state_dict.h"

namespace tutti {

/// Returns the state of rank `rank` of `size`, from Reducer::state_dict() of all ranks of a job of another size.
/// Gradients are linear: pending gradients are summed and sharded again, so the step's mean is over the same
/// micro-batches with the same weights. Without accumulate(), where ranks have equal weights, each pending pass counts
/// as a pass of the new ranks. The same holds for parts of split batches (WeightUnit): a part of the new ranks has
/// another size, so a batch keeps its weight. Equal to the uninterrupted result up to rounding. Throws CheckpointError
/// if the states belong to different steps, or if weights have different units.
StateDict reshard_windows(std::span<const StateDict> of_ranks, int rank, int size);

}  // namespace tutti
