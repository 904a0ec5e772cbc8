#pragma once
// Gradient clipping over tensors that are equal on all ranks: no communication.
//
// Pascanu, Mikolov, Bengio, "On the difficulty of training recurrent neural networks", ICML 2013.
#include <ATen/core/TensorBody.h>

#include <vector>

namespace tutti {

/// Scales the gradients of `parameters` so that their joint norm is at most `max_norm`, as
/// torch.nn.utils.clip_grad_norm_; complex elements count by their absolute values. Returns the norm before. Sums in
/// double, so that all sizes are exact enough; `norm_type` may be infinity. Undefined gradients count as zero. Throws
/// UsageError for max_norm < 0 or norm_type <= 0, and, with `error_if_nonfinite`, for a norm that is NaN or infinite:
/// then no gradient has been changed.
double clip_grad_norm(const std::vector<at::Tensor>& parameters, double max_norm, double norm_type = 2.0,
                      bool error_if_nonfinite = false);

/// Limits every element of the gradients to [-clip_value, clip_value], as torch.nn.utils.clip_grad_value_; NaN stays.
/// Throws UsageError for clip_value < 0 and, before it changes any, for complex gradients.
void clip_grad_value(const std::vector<at::Tensor>& parameters, double clip_value);

}  // namespace tutti
