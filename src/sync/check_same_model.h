#pragma once
// Checks that all ranks have the same parameters. Gradient buckets are sent without call signatures afterwards.
#include <vector>

#include "tutti/comm/communicator.h"
#include "tutti/detail/sync/reducer.h"

namespace tutti::sync {

/// Compares names, shapes, dtypes, requires_grad and bucket sizes across ranks. Throws MismatchError on every rank,
/// naming the first parameter that differs, and UsageError for parameters that cannot be synchronized. Every rank must
/// call it.
void check_same_model(const std::vector<NamedParameter>& parameters, const ReducerOptions& options,
                      const Communicator& communicator);

}  // namespace tutti::sync
