#pragma once
// The outer optimizers: apply the mean of all ranks' changes to the anchor, elementwise. No I/O.
#include <ATen/core/TensorBody.h>

#include "tutti/local_sgd/local_sgd_algorithm_options.h"

namespace tutti::local_sgd {

/// True if the method has an outer momentum.
bool keeps_momentum(const LocalSgdAlgorithmOptions& options);

/// Changes `anchor` and `momentum` in place. `difference` is the mean of all ranks' models minus the anchor. `momentum`
/// may be undefined if keeps_momentum() is false. `inner_rate` is SlowMo's gamma, not 0; other methods ignore it.
void outer_step(const LocalSgdAlgorithmOptions& options, const at::Tensor& anchor, const at::Tensor& momentum,
                const at::Tensor& difference, double inner_rate);

}  // namespace tutti::local_sgd
