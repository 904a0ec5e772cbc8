#pragma once
// What a reducer refuses because of ReducerOptions::reproducible. No I/O. Every function throws UsageError.
#include <cstdint>

#include "sync/accumulation_window_state.h"
#include "sync/parameter_set.h"
#include "tutti/comm/communicator.h"
#include "tutti/sync/reducer_options.h"

namespace tutti::sync {

/// Gradients whose sums over the ranks of `communicator` cannot be reproducible.
void require_reproducible(const ParameterSet& parameters, const ReducerOptions& options,
                          const Communicator& communicator);
/// Scopes that are synchronized alone or whose weights have no exact sum, and (on several ranks) a window's last scope
/// if the `micro_batches` of this rank do not form a block of the summation order.
void require_reproducible_scope(const ParameterSet& parameters, const AccumulationStep& step,
                                std::int64_t micro_batches, int ranks);
/// A backward pass that the sum of a scope cannot include.
void require_reproducible_pass(const ParameterSet& parameters, const AccumulationWindowState& window);

}  // namespace tutti::sync
