#pragma once
// All ranks must have the same parameters before gradients travel without a fingerprint of their own.
#include <vector>

#include "tutti/comm/communicator.h"
#include "tutti/sync/reducer.h"

namespace tutti::sync {

/// Compares names, shapes, dtypes, requires_grad and bucket sizes across ranks. Throws Divergence on every rank, naming
/// the first parameter that differs, and UsageError for parameters that cannot be synchronized. Every rank must call
/// it.
void agree_on_plan(const std::vector<NamedParameter>& parameters, const ReducerOptions& options,
                   const Communicator& channel);

}  // namespace tutti::sync
