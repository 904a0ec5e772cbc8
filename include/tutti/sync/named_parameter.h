#pragma once
// A parameter and the name under which errors speak of it.
#include <ATen/core/TensorBody.h>

#include <string>

namespace tutti {

struct NamedParameter {
  std::string name;
  at::Tensor tensor;
};

}  // namespace tutti
