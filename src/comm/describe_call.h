#pragma once
// Helpers that the calls of a Communicator share.
#include <string>

#include "tutti/comm/reduce_op.h"

namespace tutti::comm {

/// The text of `op` in a call's arguments: "sum".
std::string describe_op(ReduceOp op);
/// Throws UsageError unless the root `rank` is a rank of a group of `size`. `what` names the call.
void require_rank(int rank, int size, const char* what);

}  // namespace tutti::comm
