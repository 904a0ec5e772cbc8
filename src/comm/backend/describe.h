#pragma once
// Formats values for error messages.
#include <ATen/core/TensorBody.h>

#include <string>

#include "core/describe.h"

namespace tutti::comm {

using tutti::describe_duration;
using tutti::describe_ranks;
using tutti::first_line;
/// "float [4, 3]", on a device "float [4, 3] on cuda": the devices of ranks have different indices.
std::string describe_tensor(const at::Tensor& tensor);
/// " on cuda"; empty for the CPU.
std::string describe_device_type(const at::Tensor& tensor);

}  // namespace tutti::comm
