#include "optim/unique_parameters.h"

#include <ATen/core/Tensor.h>

#include <unordered_set>
#include <utility>

namespace tutti {

bool has_repeated_parameters(const torch::optim::Optimizer& optimizer) {
  std::unordered_set<const void*> seen;
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      if (!seen.insert(parameter.unsafeGetTensorImpl()).second) return true;
    }
  }
  return false;
}

// LibTorch's functions that write an optimizer read its groups through this list. The destructor restores it.
UniqueParametersScope::UniqueParametersScope(const torch::optim::Optimizer& optimizer)
    : optimizer_(const_cast<torch::optim::Optimizer&>(optimizer)) {
  if (!has_repeated_parameters(optimizer)) return;
  std::unordered_set<const void*> seen;
  for (auto& group : optimizer_.param_groups()) {
    std::vector<at::Tensor> once;
    for (const at::Tensor& parameter : group.params()) {
      if (seen.insert(parameter.unsafeGetTensorImpl()).second) once.push_back(parameter);
    }
    original_parameters_.push_back(std::exchange(group.params(), std::move(once)));
  }
}

UniqueParametersScope::~UniqueParametersScope() {
  for (std::size_t i = 0; i < original_parameters_.size(); ++i)
    optimizer_.param_groups()[i].params() = std::move(original_parameters_[i]);
}

}  // namespace tutti
