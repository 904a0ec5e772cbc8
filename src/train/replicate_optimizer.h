#pragma once
// Broadcasts the state of an optimizer from rank 0.
#include <torch/optim/optimizer.h>

#include <functional>

#include "tutti/comm/communicator.h"

namespace tutti {

/// Replaces the state (moments, step counts) and the options of all groups by those of rank 0, and clears the state if
/// rank 0 has none. Every rank must call it. Throws MismatchError on all ranks if ranks have optimizers of other types,
/// other groups, or other options that tutti cannot replace. Throws UsageError or CheckpointError on all ranks if the
/// state of rank 0 cannot be written, or does not fit a rank's optimizer. The state of parameters for which
/// `is_ignored` returns true stays; UsageError if it cannot be told from the rest.
void replicate_optimizer(
    torch::optim::Optimizer& optimizer, const Communicator& communicator,
    const std::function<bool(const at::Tensor&)>& is_ignored = [](const at::Tensor&) { return false; });

}  // namespace tutti
