#pragma once
// Saved windows of one number of ranks for another. Pure.
#include <span>

#include "tutti/state/state_dict.h"

namespace tutti {

/// What rank `rank` of `size` goes on with, from Reducer::state_dict() of all ranks of a job of another size. Gradients
/// are linear: pending ones are added up and dealt anew, so that the step's mean is over the same micro-batches with
/// the same weights. (Without accumulate(), where ranks count alike, each pending pass counts as if the new ranks had
/// run it.) Equal to the uninterrupted result up to rounding. Throws CheckpointError where the states belong to
/// different steps.
StateDict reshard_windows(std::span<const StateDict> of_ranks, int rank, int size);

}  // namespace tutti
