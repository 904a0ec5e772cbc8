#pragma once
// Comparison of an evaluation's results over the ranks. Callbacks, schedules and checkpoints decide by the results, so
// ranks with different results would diverge.
#include <vector>

#include "tutti/comm/communicator.h"
#include "tutti/tracking/tracker.h"

namespace tutti {

/// The results of rank 0. Throws MismatchError if another rank's differ by more than the rounding of float32; NaN
/// equals NaN. `of_ranks`: the results of each rank. No I/O.
Scalars agreed_results(const std::vector<Scalars>& of_ranks);

/// The same for the results of this rank. Collective; throws on all ranks.
Scalars agreed_results(const Communicator& communicator, const Scalars& results);

}  // namespace tutti
