#pragma once
// Comparison of an evaluation's results over the ranks. Callbacks, schedules and checkpoints decide by the results, so
// ranks with different results would diverge.
#include <vector>

#include "tutti/comm/communicator.h"
#include "tutti/tracking/tracker.h"

namespace tutti {

/// Throws MismatchError if two ranks have different results; NaN equals NaN. `of_ranks`: the results of each rank. No
/// I/O.
void require_same_results(const std::vector<Scalars>& of_ranks);

/// The same for the results of this rank. Collective; throws on all ranks.
void require_same_results(const Communicator& communicator, const Scalars& results);

}  // namespace tutti
