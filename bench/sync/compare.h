#pragma once
// Takes every figure of the table, turn by turn.
#include <memory>
#include <vector>

#include "report/results.h"
#include "sync/systems/system.h"
#include "tutti/comm/communicator.h"

namespace tutti::bench {

/// Runs every mode of every system `repeats` times, forwards and backwards through the list in turn, so that a machine
/// that gets slower or faster does so for all. What they end with is held against `reference`. `start`: a fresh model's
/// parameters; `whole_windows`: the timed epoch has no short window. Every rank must call it.
Results compare(const std::vector<std::unique_ptr<System>>& systems, System& reference, const Parameters& start,
                bool whole_windows, const Communicator& communicator, int repeats);

}  // namespace tutti::bench
