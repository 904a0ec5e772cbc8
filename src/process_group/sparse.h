#pragma once
// All-reduce of sparse tensors, as in ProcessGroupGloo.
#include <chrono>

#include "process_group/group_work.h"
#include "tutti/comm/communicator.h"

namespace tutti::process_group {

/// Starts the operations that replace `tensor`, a sparse COO tensor in CPU memory, by the sum over all ranks. Every
/// rank must call it. Blocks until all ranks have called it, because they first exchange their numbers of elements.
/// Throws UsageError if `op` is not SUM, and MismatchError on all ranks if shapes or dtypes differ.
Parts sparse_all_reduce(const Communicator& communicator, const at::Tensor& tensor, const c10d::ReduceOp& op,
                        const CallOptions& call);

}  // namespace tutti::process_group
