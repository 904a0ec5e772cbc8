#pragma once
// A parameter and the name under which errors speak of it.
#include <ATen/core/TensorBody.h>

#include <string>

namespace tutti {

/// One entry of what is synchronized.
struct NamedParameter {
  std::string name;   ///< as named_parameters() has it; equal on all ranks
  at::Tensor tensor;  ///< the parameter itself, shared
  /// Its gradients are sparse in their rows: torch::nn::EmbeddingOptions::sparse.
  bool sparse = false;
};

}  // namespace tutti
