#pragma once
// Momentum under whatever name an optimizer has it.
#include <torch/optim/optimizer.h>

namespace tutti {

/// Whether set_momentum() knows this optimizer: SGD and RMSprop have a momentum, Adam and AdamW a first beta.
bool has_momentum(const torch::optim::Optimizer& optimizer);

/// Sets it in every group. Throws UsageError for an optimizer without one.
void set_momentum(torch::optim::Optimizer& optimizer, double momentum);

}  // namespace tutti
