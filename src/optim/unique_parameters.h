#pragma once
// Optimizers that list a parameter more than once, for example for a layer that is registered under two names. LibTorch
// and tutti step such a parameter as often as it is listed. But LibTorch loses its state when it reads the optimizer
// from a file.
#include <torch/optim/optimizer.h>

#include <vector>

namespace tutti {

bool has_repeated_parameters(const torch::optim::Optimizer& optimizer);

/// Until it is destroyed, the optimizer's groups list each parameter once, so that writing and reading are complete.
class UniqueParametersScope {
 public:
  explicit UniqueParametersScope(const torch::optim::Optimizer& optimizer);
  ~UniqueParametersScope();
  UniqueParametersScope(const UniqueParametersScope&) = delete;
  UniqueParametersScope& operator=(const UniqueParametersScope&) = delete;

 private:
  torch::optim::Optimizer& optimizer_;
  std::vector<std::vector<at::Tensor>> original_parameters_;  // by group; empty where nothing repeats
};

}  // namespace tutti
