#pragma once
// An optimizer's state as named values, for any LibTorch optimizer.
#include <torch/optim/optimizer.h>

#include <span>
#include <string>

#include "tutti/state/state_dict.h"

namespace tutti {

/// Returns the options of every group ("group.0.lr") and the state of every parameter under its name
/// ("state.fc1.weight.exp_avg"), with the names and meaning of PyTorch, for Adam, AdamW, SGD, RMSprop and Adagrad. For
/// any other optimizer, returns the values that its save() writes ("saved.state.0.exp_avg"); its load() reads them.
/// `names` must be in the order of the groups' parameters; a parameter that is listed twice has the same name twice.
/// The tensors are shared with the optimizer. Throws UsageError if a save() of the latter writes nothing though
/// the optimizer has state, as it has after a step.
StateDict optimizer_state(const torch::optim::Optimizer& optimizer, std::span<const std::string> names,
                          bool has_stepped = false);

/// Adds the names of the parameters to the result of optimizer_state(), by their numbers in "group.0.params":
/// "param_names.0", "param_names.1", ...
void set_parameter_names(StateDict& state, std::span<const std::string> names);

/// Whether optimizer_state() stores the state of each parameter under its name.
bool has_parameter_names(const torch::optim::Optimizer& optimizer);

/// Restores the state on the device of the parameters. Throws CheckpointError, before it changes anything, if the state
/// does not fit (another optimizer, other parameters or shapes); the message names the difference. If the state holds
/// the names of the parameters, each group must have the parameters of the saved group in its place, in any order.
/// Options are saved by group, so a state without names, as earlier versions saved, can only be matched by place.
void load_optimizer_state(torch::optim::Optimizer& optimizer, std::span<const std::string> names,
                          const StateDict& state);

/// Converts the state of each parameter to the parameter's device and dtype, as load_optimizer_state() does: the
/// program may have moved the parameters after a step. State that fits stays in its tensors. Does nothing to an
/// optimizer whose state has no names (has_parameter_names()).
void convert_optimizer_state(torch::optim::Optimizer& optimizer);

}  // namespace tutti
