#pragma once
// Formats values for error messages.
#include <ATen/core/TensorBody.h>

#include <string>

#include "core/describe.h"

namespace tutti::comm {

using tutti::describe_duration;
using tutti::describe_ranks;
using tutti::first_line;
/// "float [4, 3]".
std::string describe_tensor(const at::Tensor& tensor);

}  // namespace tutti::comm
