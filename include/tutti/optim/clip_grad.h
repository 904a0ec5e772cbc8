#pragma once
// Gradient clipping. No communication: gradients must be equal on all ranks.
//
// Pascanu, Mikolov, Bengio, "On the difficulty of training recurrent neural networks", ICML 2013.
#include <ATen/core/TensorBody.h>

#include <vector>

#include "tutti/device/late_value.h"

namespace tutti {

/// Scales the gradients of `parameters` so that their joint norm is at most `max_norm`, as
/// torch.nn.utils.clip_grad_norm_. Returns the norm before scaling. Complex elements count by their absolute values,
/// undefined gradients as zero, and a parameter that is listed twice once; `norm_type` may be infinity. A norm that is
/// NaN changes no gradient. Throws UsageError for max_norm < 0 or norm_type <= 0. With `error_if_nonfinite`, throws
/// UsageError for a norm that is NaN or infinite, and changes no gradient.
///
/// On the CPU, sums are double. On an accelerator they are float, or double if a gradient is, and the factor is rounded
/// to each gradient's dtype. If all gradients are on accelerators, the host waits for them only when the norm is read,
/// or at once with `error_if_nonfinite`.
LateValue clip_grad_norm(const std::vector<at::Tensor>& parameters, double max_norm, double norm_type = 2.0,
                         bool error_if_nonfinite = false);

/// Clamps every element of the gradients to [-clip_value, clip_value], as torch.nn.utils.clip_grad_value_. NaN stays.
/// Throws UsageError for clip_value < 0 and for complex gradients; no gradient is changed then.
void clip_grad_value(const std::vector<at::Tensor>& parameters, double clip_value);

}  // namespace tutti
