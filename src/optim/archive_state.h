#pragma once
// Converts what an optimizer's save() writes to named values, and back.
//
// LibTorch's archives may contain code that runs on reading. So this file reads only archives that this process has
// just written; checkpoints store the values.
#include <torch/optim/optimizer.h>

#include "tutti/state/state_dict.h"

namespace tutti {

/// Returns the values of save(). Nested archives become parts, named by their keys ('.' and '%' are written as "%2E"
/// and "%25"). Other values are parts with a mark: "%none", "%undefined" (a tensor), "%empty" (an archive), "%list"
/// (number of tensors) or "%tuple" (number of elements "%0", "%1", ...). Throws UsageError if save() fails, writes
/// nothing, or writes a value of another type.
StateDict state_from_save(const torch::optim::Optimizer& optimizer);

/// Calls load() with values from state_from_save(). Throws CheckpointError for values that state_from_save() cannot
/// return, and the exceptions of load().
void load_through_archive(torch::optim::Optimizer& optimizer, const StateDict& state);

}  // namespace tutti
