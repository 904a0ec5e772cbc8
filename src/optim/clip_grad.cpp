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

/// Returns the gradients; of a sparse gradient, its values. Writing to these values changes the gradient.
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

// To sum floats in double, ATen converts each element, which takes several times as long.
bool sums_faster_by_hand(const at::Tensor& grad) {
  return grad.is_cpu() && grad.layout() == at::kStrided && grad.is_floating_point() && !grad.is_neg();
}

// Combines the norms of all tensors, so the host waits only once for a device. The maximum is exact in any dtype; sums
// are double.
double norm_of(const std::vector<at::Tensor>& grads, double norm_type) {
  const auto dtype = std::isinf(norm_type) ? std::nullopt : std::optional(at::kDouble);
  double squares = 0;
  std::vector<at::Tensor> norms;
  for (const at::Tensor& grad : grads) {
    if (norm_type == 2 && sums_faster_by_hand(grad)) {
      squares += sum_of_squares(grad);
    } else {
      // A complex number counts by its absolute value, as in LibTorch.
      const at::Tensor sizes = grad.is_complex() ? grad.abs() : grad;
      norms.push_back(
          at::linalg_vector_norm(sizes, norm_type, at::OptionalIntArrayRef(), false, dtype).to(at::kDouble));
    }
  }
  if (norms.empty()) return std::sqrt(squares);
  norms.push_back(at::scalar_tensor(std::sqrt(squares), at::kDouble));
  for (at::Tensor& norm : norms) norm = norm.to(norms.front().device());
  return at::linalg_vector_norm(at::stack(norms), norm_type).item<double>();
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
                     ", and no gradient was changed: find the operation that overflows, or unset error_if_nonfinite");
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
  auto grads = gradients_of(parameters);
  for (const at::Tensor& grad : grads) {
    if (grad.is_complex()) throw UsageError("clip_grad_value_: complex gradients have no order: use clip_grad_norm_");
  }
  for (at::Tensor& grad : grads) grad.clamp_(-clip_value, clip_value);
}

}  // namespace tutti
