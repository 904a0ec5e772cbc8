#pragma once
// Makes the state of an optimizer equal on all ranks.
#include <torch/optim/optimizer.h>

#include "tutti/comm/communicator.h"

namespace tutti {

/// The state (moments, step counts) becomes that of rank 0; without one there, it is dropped. Every rank must call it.
/// Throws UsageError on all ranks where LibTorch cannot write the state.
void replicate_optimizer(torch::optim::Optimizer& optimizer, const Communicator& communicator);

}  // namespace tutti
