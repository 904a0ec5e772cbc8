#include "tutti/optim/clip_grad.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <unordered_set>

#include "device/foreach.h"
#include "optim/sum_of_squares.h"
#include "tutti/core/error.h"

namespace tutti {

namespace {

/// Returns the gradients; of a sparse gradient, its values. Writing to these values changes the gradient. The gradient
/// of a parameter that is listed twice occurs once.
std::vector<at::Tensor> gradients_of(const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> grads;
  std::unordered_set<const at::TensorImpl*> seen;
  for (const at::Tensor& parameter : parameters) {
    at::Tensor& grad = parameter.mutable_grad();
    if (!grad.defined() || !seen.insert(parameter.unsafeGetTensorImpl()).second) continue;
    if (grad.layout() == at::kSparse && !grad.is_coalesced()) grad = grad.coalesce();
    grads.push_back(grad.layout() == at::kSparse ? grad.values() : grad);
  }
  return grads;
}

// To sum floats in double, ATen converts each element, which takes several times as long.
bool sums_faster_by_hand(const at::Tensor& grad) {
  return grad.is_cpu() && grad.layout() == at::kStrided && grad.is_floating_point() && !grad.is_neg();
}

// The norm of gradients on the CPU. The maximum is exact in any dtype; sums are double.
double norm_on_cpu(const std::vector<at::Tensor>& grads, double norm_type) {
  const auto dtype = std::isinf(norm_type) ? std::nullopt : std::optional(at::kDouble);
  double squares = 0;
  std::vector<at::Tensor> norms;
  for (const at::Tensor& grad : grads) {
    if (grad.numel() == 0) continue;  // ATen refuses the maximum of no elements
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
  return at::linalg_vector_norm(at::stack(norms), norm_type).item<double>();
}

void require_finite(double norm) {
  if (std::isfinite(norm)) return;
  throw UsageError("clip_grad_norm_: the norm of the gradients is " + std::to_string(norm) +
                   ", and no gradient was changed: find the operation that overflows, or unset error_if_nonfinite");
}

constexpr double epsilon = 1e-6;  // as LibTorch's

double clip_on_cpu(const std::vector<at::Tensor>& grads, double max_norm, double norm_type, bool error_if_nonfinite) {
  const double total = norm_on_cpu(grads, norm_type);
  if (error_if_nonfinite) require_finite(total);
  const double factor = max_norm / (total + epsilon);
  if (factor < 1.0) {
    for (const at::Tensor& grad : grads) grad.mul_(factor);
  }
  return total;
}

/// The norm and the factor stay on the devices.
LateValue clip_on_accelerators(const std::vector<at::Tensor>& grads, double max_norm, double norm_type,
                               bool error_if_nonfinite) {
  const at::Tensor total = devices::norm_of(grads, norm_type);
  const LateValue norm(total);
  if (error_if_nonfinite) require_finite(norm);
  if (std::isinf(max_norm)) return norm;
  const double limit = std::min<double>(max_norm, std::numeric_limits<float>::max());
  // The factor of a norm that is NaN is 1.
  const at::Tensor factor = total.add(epsilon).reciprocal_().mul_(limit).clamp_max_(1).nan_to_num_(1);
  devices::multiply(grads, factor);
  return norm;
}

/// The host needs the norms of both.
double clip_on_both(const std::vector<at::Tensor>& grads, double max_norm, double norm_type, bool error_if_nonfinite) {
  std::vector<at::Tensor> host, device;
  for (const at::Tensor& grad : grads) (grad.is_cpu() ? host : device).push_back(grad);
  const double of_device = LateValue(devices::norm_of(device, norm_type));
  const at::Tensor both = at::tensor({norm_on_cpu(host, norm_type), of_device}, at::kDouble);
  const double total = at::linalg_vector_norm(both, norm_type).item<double>();
  if (error_if_nonfinite) require_finite(total);
  const double factor = max_norm / (total + epsilon);
  if (factor < 1.0) devices::multiply(grads, at::scalar_tensor(factor, at::kDouble));
  return total;
}

}  // namespace

LateValue clip_grad_norm(const std::vector<at::Tensor>& parameters, double max_norm, double norm_type,
                         bool error_if_nonfinite) {
  if (!(max_norm >= 0)) throw UsageError("clip_grad_norm_: max_norm is " + std::to_string(max_norm) + ", must be >= 0");
  if (!(norm_type > 0))
    throw UsageError("clip_grad_norm_: norm_type is " + std::to_string(norm_type) + ", must be > 0");
  const at::NoGradGuard no_grad;
  const auto grads = gradients_of(parameters);
  if (!devices::any_on_accelerator(grads)) return clip_on_cpu(grads, max_norm, norm_type, error_if_nonfinite);
  const bool any_on_cpu = std::ranges::any_of(grads, &at::Tensor::is_cpu);
  if (any_on_cpu) return clip_on_both(grads, max_norm, norm_type, error_if_nonfinite);
  return clip_on_accelerators(grads, max_norm, norm_type, error_if_nonfinite);
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
  if (devices::any_on_accelerator(grads)) return devices::clamp(grads, -clip_value, clip_value);
  for (at::Tensor& grad : grads) grad.clamp_(-clip_value, clip_value);
}

}  // namespace tutti
