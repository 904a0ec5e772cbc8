#pragma once
// Converts what an optimizer's save() writes to named values, and back.
//
// LibTorch's archives may contain code that runs on reading. So this file reads only archives that this process has
// just written; checkpoints store the values.
#include <torch/optim/optimizer.h>

#include <optional>
#include <string>

#include "tutti/state/state_dict.h"

namespace tutti {

/// The name of its class.
std::string type_of(const torch::optim::Optimizer& optimizer);

/// Returns the values of save(). Nested archives become parts, named by their keys ('.' and '%' are written as "%2E"
/// and "%25"). Other values are parts with a mark: "%none", "%undefined" (a tensor), "%empty" (an archive), "%list"
/// (number of tensors) or "%tuple" (number of elements "%0", "%1", ...). Empty if save() writes nothing. Throws
/// UsageError if save() fails or writes a value of another type.
StateDict state_from_save(const torch::optim::Optimizer& optimizer);

/// Replaces the optimizer's state by values from state_from_save(), through load(). Returns the reason if that fails;
/// then a part of the state may have changed.
std::optional<std::string> replace_state(torch::optim::Optimizer& optimizer, const StateDict& state);

}  // namespace tutti
