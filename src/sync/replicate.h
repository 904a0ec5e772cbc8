#pragma once
// Makes tensors equal on all ranks.
#include <vector>

#include "tutti/comm/communicator.h"

namespace tutti::sync {

/// Overwrites every rank's tensors with those of rank 0, a few megabytes at a time. Shapes and dtypes must agree. Every
/// rank must call it.
void replicate(const std::vector<at::Tensor>& tensors, const Communicator& communicator);

}  // namespace tutti::sync
