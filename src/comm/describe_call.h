#pragma once
// What the calls of a Communicator have in common.
#include <ATen/core/TensorBody.h>

#include <cstddef>
#include <span>
#include <string>

#include "tutti/comm/communicator.h"

namespace tutti::comm {

std::span<const std::byte> bytes_of(const at::Tensor& memory);
/// As it stands in a call's arguments: "sum".
std::string describe_op(ReduceOp op);
/// Throws UsageError unless `rank` is one of a group of `size`. `what` is the call.
void require_rank(int rank, int size, const char* what);

}  // namespace tutti::comm
