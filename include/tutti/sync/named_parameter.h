#pragma once
// A parameter and the name under which errors speak of it.
#include <ATen/core/TensorBody.h>

#include <string>

namespace tutti {

struct NamedParameter {
  std::string name;
  at::Tensor tensor;
  /// Its gradients are sparse in their rows: torch::nn::EmbeddingOptions::sparse.
  bool sparse = false;
};

}  // namespace tutti
