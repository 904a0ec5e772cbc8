#pragma once
// Measures every cell of the table, in alternation.
#include <memory>
#include <vector>

#include "report/results.h"
#include "sync/selection.h"
#include "sync/systems/system.h"
#include "tutti/comm/communicator.h"

namespace tutti::bench {

/// Runs every selected mode of every system `repeats` times. The order alternates between forwards and backwards, so
/// that a change of the machine's speed affects all systems. Compares the final parameters with `reference`. `start`:
/// the parameters of a fresh model; `whole_windows`: the timed epoch has no short window. Every rank must call it.
Results compare(const std::vector<std::unique_ptr<System>>& systems, System& reference, const Parameters& start,
                bool whole_windows, const Communicator& communicator, int repeats, const Selection& selection = {});

}  // namespace tutti::bench
