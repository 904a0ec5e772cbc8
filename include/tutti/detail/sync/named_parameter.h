#pragma once
// A parameter and its name in error messages.
#include <ATen/core/TensorBody.h>

#include <memory>
#include <string>

namespace tutti {

/// A parameter of a Reducer.
struct NamedParameter {
  std::string name;   ///< from named_parameters(); equal on all ranks
  at::Tensor tensor;  ///< the parameter itself, shared
  /// True if its gradients are sparse in their rows: torch::nn::EmbeddingOptions::sparse.
  bool sparse = false;
  /// The name of its model in errors, which distinguishes equal names in two models. Null or empty: errors name no
  /// model. Shared by the parameters of a model: an Accelerator fills it in when a second model is prepared.
  std::shared_ptr<const std::string> model{};
};

/// "'c1.weight'", or "'c1.weight' of model_1 (Generator)".
std::string quoted(const NamedParameter& parameter);

}  // namespace tutti
