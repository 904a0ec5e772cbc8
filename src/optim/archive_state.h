#pragma once
// What an optimizer's own save() writes, as named values.
//
// LibTorch's archives may hold code, which reading them runs. Here they are only read where they were just written;
// what is kept and given to load() later are the values.
#include <torch/optim/optimizer.h>

#include "tutti/state/state_dict.h"

namespace tutti {

/// Nested archives are parts of the result, whose names are the keys ('.' and '%' in them as "%2E" and "%25"). A part
/// "%none", "%undefined" (a tensor), "%empty" (an archive), "%list" (of tensors) or "%tuple" (their length; "%0", "%1",
/// ... are the elements) stands for what is no value of a StateDict. Throws UsageError where save() fails, writes
/// nothing, or writes what is neither of these nor a value of a StateDict.
StateDict state_from_save(const torch::optim::Optimizer& optimizer);

/// Calls load() with what state_from_save() gave. Throws CheckpointError where `state` cannot be that, and what load()
/// throws.
void load_through_archive(torch::optim::Optimizer& optimizer, const StateDict& state);

}  // namespace tutti
