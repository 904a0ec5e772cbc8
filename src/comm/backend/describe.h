#pragma once
// Formats values for error messages.
#include <ATen/core/TensorBody.h>

#include <chrono>
#include <string>
#include <vector>

namespace tutti::comm {

/// "rank 2", "ranks 0, 1".
std::string describe_ranks(const std::vector<int>& ranks);
/// "30 s", "1500 ms".
std::string describe_duration(std::chrono::milliseconds duration);
/// "float [4, 3]".
std::string describe_tensor(const at::Tensor& tensor);

}  // namespace tutti::comm
