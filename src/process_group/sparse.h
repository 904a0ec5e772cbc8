#pragma once
// Sums of sparse tensors, as ProcessGroupGloo has them.
#include <chrono>

#include "process_group/group_work.h"
#include "tutti/comm/communicator.h"

namespace tutti::process_group {

/// The operations that replace `tensor`, a sparse COO tensor in CPU memory, by the sum over all ranks. The ranks tell
/// each other first how many elements each of them has: so this call itself waits until all have called it. Throws
/// UsageError for another operation than SUM, MismatchError on all ranks where shapes or dtypes differ.
Parts sparse_all_reduce(const Communicator& communicator, const at::Tensor& tensor, const c10d::ReduceOp& op,
                        const CallOptions& call);

}  // namespace tutti::process_group
