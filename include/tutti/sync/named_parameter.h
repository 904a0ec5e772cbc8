#pragma once
// A parameter and the name under which errors speak of it.
#include <ATen/core/TensorBody.h>

#include <memory>
#include <string>

namespace tutti {

/// One entry of what is synchronized.
struct NamedParameter {
  std::string name;   ///< as named_parameters() has it; equal on all ranks
  at::Tensor tensor;  ///< the parameter itself, shared
  /// Its gradients are sparse in their rows: torch::nn::EmbeddingOptions::sparse.
  bool sparse = false;
  /// What errors call its model, so that two models' parameters of one name are told apart; nothing is said where it is
  /// null or empty. Shared by a model's parameters: an Accelerator fills it in when a second model comes.
  std::shared_ptr<const std::string> model{};
};

/// "'c1.weight'", or "'c1.weight' of model_1 (Generator)".
std::string quoted(const NamedParameter& parameter);

}  // namespace tutti
