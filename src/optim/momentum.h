#pragma once
// The momentum of an optimizer, independent of its name there.
#include <torch/optim/optimizer.h>

namespace tutti {

/// True for SGD and RMSprop, which have a momentum, and for Adam and AdamW, which have a first beta.
bool has_momentum(const torch::optim::Optimizer& optimizer);

/// Sets the momentum of every group. Throws UsageError for an optimizer without a momentum.
void set_momentum(torch::optim::Optimizer& optimizer, double momentum);

}  // namespace tutti
