#include "tutti/optim/clip_grad.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <cmath>
#include <optional>
#include <string>

#include "optim/sum_of_squares.h"
#include "tutti/core/error.h"

namespace tutti {

namespace {

/// Of a sparse gradient its values: no other elements count. Writing to them writes to the gradient.
std::vector<at::Tensor> gradients_of(const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> grads;
  for (const at::Tensor& parameter : parameters) {
    at::Tensor& grad = parameter.mutable_grad();
    if (!grad.defined()) continue;
    if (grad.layout() == at::kSparse && !grad.is_coalesced()) grad = grad.coalesce();
    grads.push_back(grad.layout() == at::kSparse ? grad.values() : grad);
  }
  return grads;
}

// The largest element is exact in any type; sums are taken in double.
double norm_of(const at::Tensor& grad, double norm_type) {
  const auto dtype = std::isinf(norm_type) ? std::nullopt : std::optional(at::kDouble);
  return at::linalg_vector_norm(grad, norm_type, at::OptionalIntArrayRef(), false, dtype).item<double>();
}

double power_of_norm(const at::Tensor& grad, double norm_type) {
  // ATen converts element by element where it is to sum floats in double, which takes several times as long.
  const bool plain = grad.is_cpu() && grad.layout() == at::kStrided && grad.is_floating_point() && !grad.is_neg();
  if (norm_type == 2 && plain) return sum_of_squares(grad);
  return std::pow(norm_of(grad, norm_type), norm_type);
}

double norm_of(const std::vector<at::Tensor>& grads, double norm_type) {
  double total = 0;
  for (const at::Tensor& grad : grads) {
    if (!std::isinf(norm_type)) {
      total += power_of_norm(grad, norm_type);
    } else if (const double norm = norm_of(grad, norm_type); std::isnan(norm) || norm > total) {
      total = norm;  // std::max would lose a NaN
    }
  }
  return std::isinf(norm_type) ? total : std::pow(total, 1.0 / norm_type);
}

}  // namespace

double clip_grad_norm(const std::vector<at::Tensor>& parameters, double max_norm, double norm_type,
                      bool error_if_nonfinite) {
  if (!(max_norm >= 0)) throw UsageError("clip_grad_norm_: max_norm is " + std::to_string(max_norm) + ", must be >= 0");
  if (!(norm_type > 0))
    throw UsageError("clip_grad_norm_: norm_type is " + std::to_string(norm_type) + ", must be > 0");
  const at::NoGradGuard no_grad;
  auto grads = gradients_of(parameters);
  const double total = norm_of(grads, norm_type);
  if (error_if_nonfinite && !std::isfinite(total)) {
    throw UsageError("clip_grad_norm_: the norm of the gradients is " + std::to_string(total) +
                     ", and nothing was changed: look for what overflows, or leave error_if_nonfinite off");
  }

  const double factor = max_norm / (total + 1e-6);
  if (factor < 1.0) {
    for (at::Tensor& grad : grads) grad.mul_(factor);
  }
  return total;
}

void clip_grad_value(const std::vector<at::Tensor>& parameters, double clip_value) {
  if (!(clip_value >= 0)) {
    throw UsageError("clip_grad_value_: clip_value is " + std::to_string(clip_value) + ", must be >= 0");
  }
  const at::NoGradGuard no_grad;
  for (at::Tensor& grad : gradients_of(parameters)) grad.clamp_(-clip_value, clip_value);
}

}  // namespace tutti
