#pragma once
// Makes tensors equal on all ranks.
#include <vector>

#include "tutti/comm/communicator.h"

namespace tutti::sync {

/// Broadcasts the tensors of rank 0 to all ranks, a few megabytes at a time. Shapes and dtypes must agree. Every rank
/// must call it.
void replicate(const std::vector<at::Tensor>& tensors, const Communicator& communicator);

}  // namespace tutti::sync
