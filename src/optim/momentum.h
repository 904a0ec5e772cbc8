#pragma once
// The momentum of an optimizer, independent of its name there.
#include <torch/optim/optimizer.h>

namespace tutti {

/// Sets the momentum of every group: that of SGD and RMSprop, the first beta of Adam and AdamW. Throws UsageError for
/// a group without a momentum, before any group changes.
void set_momentum(torch::optim::Optimizer& optimizer, double momentum);

}  // namespace tutti
