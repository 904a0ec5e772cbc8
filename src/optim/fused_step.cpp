#include "optim/fused_step.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <sstream>
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

/// Why the kernels do not support a parameter, regardless of its gradient and state; null if they do.
const char* misfit_of(const at::Tensor& parameter) {
  if (parameter.layout() != at::kStrided || !parameter.device().is_cpu()) return "it is not a dense CPU tensor";
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

std::string describe(std::size_t group, std::size_t parameter, const char* misfit) {
  std::ostringstream text;
  text << "parameter " << parameter << " of group " << group << ": " << misfit;
  return text.str();
}

template <typename Rule>
std::optional<std::string> step_with(torch::optim::Optimizer& optimizer) {
  struct Group {
    const typename Rule::Options* options = nullptr;
    fused::Tensors parameters;
    fused::Tensors gradients;
  };
  std::vector<Group> groups;
  for (const OptimizerParamGroup& group : optimizer.param_groups()) {
    Group& lists = groups.emplace_back();
    lists.options = dynamic_cast<const typename Rule::Options*>(&group.options());
    if (lists.options == nullptr) return "a parameter group has options of another optimizer";
    for (std::size_t i = 0; i < group.params().size(); ++i) {
      const at::Tensor& parameter = group.params()[i];
      if (!parameter.grad().defined()) continue;
      if (const char* misfit = misfit_of<Rule>(optimizer, parameter, *lists.options)) {
        return describe(groups.size() - 1, i, misfit);
      }
      lists.parameters.push_back(parameter);
      lists.gradients.push_back(parameter.grad());
    }
  }
  const at::NoGradGuard no_grad;
  for (const Group& group : groups) {
    if (!group.parameters.empty()) Rule::step(optimizer, group.parameters, group.gradients, *group.options);
  }
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
