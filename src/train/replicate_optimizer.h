#pragma once
// Makes the state of an optimizer equal on all ranks.
#include <torch/optim/optimizer.h>

#include "tutti/comm/communicator.h"

namespace tutti {

/// The state (moments, step counts, options) becomes that of rank 0; without a state there, it is dropped. Every rank
/// must call it. Throws UsageError or CheckpointError on all ranks where the state of rank 0 cannot be written, or does
/// not fit a rank's optimizer.
void replicate_optimizer(torch::optim::Optimizer& optimizer, const Communicator& communicator);

}  // namespace tutti
