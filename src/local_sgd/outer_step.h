#pragma once
// Outer optimizers: what the mean of all ranks' changes makes of the anchor. Pure: tensors in, tensors out,
// elementwise.
#include <ATen/core/TensorBody.h>

#include "tutti/local_sgd/local_sgd_algorithm_options.h"

namespace tutti::local_sgd {

/// Whether the method keeps an outer momentum.
bool keeps_momentum(const LocalSgdAlgorithmOptions& options);

/// Changes `anchor` and `momentum` in place. `difference` is the mean of all ranks' models minus the anchor. `momentum`
/// may be undefined where keeps_momentum() is false. `inner_rate` is SlowMo's gamma, not 0; others ignore it.
void outer_step(const LocalSgdAlgorithmOptions& options, const at::Tensor& anchor, const at::Tensor& momentum,
                const at::Tensor& difference, double inner_rate);

}  // namespace tutti::local_sgd
