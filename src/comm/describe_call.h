#pragma once
// Helpers that the calls of a Communicator share.
#include <ATen/core/TensorBody.h>

#include <cstddef>
#include <span>
#include <string>

#include "tutti/comm/reduce_op.h"

namespace tutti::comm {

std::span<const std::byte> bytes_of(const at::Tensor& memory);
/// The text of `op` in a call's arguments: "sum".
std::string describe_op(ReduceOp op);
/// Throws UsageError unless the root `rank` is a rank of a group of `size`. `what` names the call.
void require_rank(int rank, int size, const char* what);

}  // namespace tutti::comm
