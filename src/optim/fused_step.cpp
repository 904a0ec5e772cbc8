#include "optim/fused_step.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/TensorOptions.h>

#include <algorithm>
#include <cstddef>
#include <sstream>
#include <string>
#include <type_traits>
#include <typeinfo>

#include "optim/fused_rules.h"

namespace tutti {

namespace {

using torch::optim::OptimizerParamGroup;

/// True if `other` has the strides of `parameter`. The kernels ignore strides, so all tensors of a parameter must have
/// the same.
bool lies_alike(const at::Tensor& parameter, const at::Tensor& other) {
  if (!other.defined() || other.layout() != at::kStrided || other.device() != parameter.device() ||
      other.scalar_type() != parameter.scalar_type() || other.sizes() != parameter.sizes() || other.is_neg()) {
    return false;
  }
  for (std::int64_t i = 0; i < parameter.dim(); ++i) {
    if (parameter.size(i) > 1 && parameter.stride(i) != other.stride(i)) return false;
  }
  return true;
}

/// True if LibTorch has a kernel of `name` for `device`. A backend's fallback for all operators does not count: it may
/// copy the tensors to the CPU, or throw.
bool has_kernel(const char* name, at::Device device) {
  const auto kernel = c10::Dispatcher::singleton().findSchema({name, ""});
  return kernel && kernel->hasKernelForDispatchKey(c10::computeDispatchKey(std::nullopt, at::kStrided, device));
}

/// Why the kernels do not support a parameter, regardless of its device, gradient and state; null if they do.
const char* misfit_of(const at::Tensor& parameter) {
  if (parameter.layout() != at::kStrided) return "it is not dense";
  // Squares of small gradients underflow in float16. LibTorch's Adam then gives NaN. The fused kernel gives very large
  // steps, which are harder to notice.
  const at::ScalarType type = parameter.scalar_type();
  if (type != at::kFloat && type != at::kDouble && type != at::kBFloat16) return "it is not float, double or bfloat16";
  if (!parameter.is_non_overlapping_and_dense()) return "it has gaps or overlaps in memory";
  if (parameter.is_neg()) return "its memory holds negated values";
  return nullptr;
}

template <typename Rule>
const char* misfit_of(torch::optim::Optimizer& optimizer, const at::Tensor& parameter,
                      const typename Rule::Options& options) {
  if (const char* misfit = misfit_of(parameter)) return misfit;
  if (!lies_alike(parameter, parameter.grad())) return "its gradient has another type or layout";
  auto* state = fused::state_of<typename Rule::State>(optimizer, parameter);
  if (state == nullptr) {
    const bool other = optimizer.state().count(parameter.unsafeGetTensorImpl()) > 0;
    return other || Rule::has_state_from_the_start ? "its state is missing or of another kind" : nullptr;
  }
  const fused::Tensors tensors = Rule::tensors_of(*state, options);
  const bool fits =
      std::ranges::all_of(tensors, [&parameter](const at::Tensor& tensor) { return lies_alike(parameter, tensor); });
  return fits ? nullptr : "its state has another type or layout";
}

std::string describe(std::size_t group, std::size_t parameter, const std::string& misfit) {
  std::ostringstream text;
  text << "parameter " << parameter << " of group " << group << ": " << misfit;
  return text.str();
}

/// The parameters of a group that one kernel takes. A kernel of an accelerator takes one device and dtype, the CPU's
/// takes several dtypes.
template <typename Options>
struct Lists {
  Lists(const Options* of_group, const at::Tensor& parameter) : options(of_group) { add(parameter); }

  bool takes(const at::Tensor& parameter) const {
    const at::Tensor& first = parameters.front();
    return parameter.device() == first.device() && (first.is_cpu() || parameter.scalar_type() == first.scalar_type());
  }
  void add(const at::Tensor& parameter) {
    parameters.push_back(parameter);
    gradients.push_back(parameter.grad());
  }

  const Options* options;
  fused::Tensors parameters;
  fused::Tensors gradients;
};

template <typename Rule>
std::optional<std::string> step_with(torch::optim::Optimizer& optimizer) {
  std::vector<Lists<typename Rule::Options>> all;
  std::size_t number = 0;
  for (const OptimizerParamGroup& group : optimizer.param_groups()) {
    const auto* options = dynamic_cast<const typename Rule::Options*>(&group.options());
    if (options == nullptr) return "a parameter group has options of another optimizer";
    const std::size_t first = all.size();
    for (std::size_t i = 0; i < group.params().size(); ++i) {
      const at::Tensor& parameter = group.params()[i];
      if (!parameter.grad().defined()) continue;
      if (const char* misfit = misfit_of<Rule>(optimizer, parameter, *options)) return describe(number, i, misfit);
      const auto lists = std::find_if(all.begin() + static_cast<std::ptrdiff_t>(first), all.end(),
                                      [&](const auto& candidate) { return candidate.takes(parameter); });
      if (lists != all.end()) {
        lists->add(parameter);
      } else if (has_kernel(Rule::kernel_name, parameter.device())) {
        all.emplace_back(options, parameter);
      } else {
        return describe(number, i, "LibTorch has no fused kernel for " + parameter.device().str());
      }
    }
    ++number;
  }
  const at::NoGradGuard no_grad;
  for (const auto& lists : all) Rule::step(optimizer, lists.parameters, lists.gradients, *lists.options);
  return std::nullopt;
}

}  // namespace

std::optional<std::string> fused_step(torch::optim::Optimizer& optimizer) {
  namespace optim = torch::optim;
  std::optional<std::string> refusal = "there is no fused kernel for this class of optimizer";
  // Compares the exact type: a derived class may override step().
  const auto attempt = [&]<typename Rule>(std::type_identity<Rule>) {
    if (typeid(optimizer) != typeid(typename Rule::Optimizer)) return false;
    refusal = step_with<Rule>(optimizer);
    return true;
  };
  (void)(attempt(std::type_identity<fused::AdamRule<optim::AdamW, optim::AdamWOptions, optim::AdamWParamState>>()) ||
         attempt(std::type_identity<fused::AdamRule<optim::Adam, optim::AdamOptions, optim::AdamParamState>>()) ||
         attempt(std::type_identity<fused::SGDRule>()) || attempt(std::type_identity<fused::AdagradRule>()));
  return refusal;
}

}  // namespace tutti
