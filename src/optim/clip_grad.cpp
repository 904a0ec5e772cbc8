#include "tutti/optim/clip_grad.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "tutti/core/error.h"

namespace tutti {

double clip_grad_norm(const std::vector<at::Tensor>& parameters, double max_norm, double norm_type) {
  if (!(max_norm >= 0)) throw UsageError("clip_grad_norm_: max_norm is " + std::to_string(max_norm) + ", must be >= 0");
  if (!(norm_type > 0))
    throw UsageError("clip_grad_norm_: norm_type is " + std::to_string(norm_type) + ", must be > 0");
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> grads;
  for (const at::Tensor& parameter : parameters) {
    if (parameter.grad().defined()) grads.push_back(parameter.grad());
  }
  double total = 0;
  for (const at::Tensor& grad : grads) {
    const double norm =
        at::linalg_vector_norm(grad, norm_type, at::OptionalIntArrayRef(), false, at::kDouble).item<double>();
    total = std::isinf(norm_type) ? std::max(total, norm) : total + std::pow(norm, norm_type);
  }
  if (!std::isinf(norm_type)) total = std::pow(total, 1.0 / norm_type);

  const double factor = max_norm / (total + 1e-6);
  if (factor < 1.0) {
    for (at::Tensor& grad : grads) grad.mul_(factor);
  }
  return total;
}

}  // namespace tutti
