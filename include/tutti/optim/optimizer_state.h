#pragma once
// An optimizer's state as named values, for any LibTorch optimizer.
#include <torch/optim/optimizer.h>

#include <span>
#include <string>

#include "tutti/state/state_dict.h"

namespace tutti {

/// Options of every group ("group.0.lr"), and the state of every parameter under its name ("state.fc1.weight.exp_avg"):
/// names and meaning as in PyTorch. Adam, AdamW, SGD, RMSprop and Adagrad are written out; of any other optimizer the
/// values are kept that its save() writes ("saved.state.0.exp_avg"), and given to its load(). `names` stand in the
/// order of the groups' parameters; a parameter that is listed twice has the same name twice. The tensors are the
/// optimizer's own.
StateDict optimizer_state(const torch::optim::Optimizer& optimizer, std::span<const std::string> names);

/// Whether optimizer_state() has the state of each parameter under its name.
bool has_parameter_names(const torch::optim::Optimizer& optimizer);

/// Restores it, on the device of the parameters. Throws CheckpointError naming what does not fit (another optimizer's
/// state, other parameters or shapes), before anything is changed.
void load_optimizer_state(torch::optim::Optimizer& optimizer, std::span<const std::string> names,
                          const StateDict& state);

}  // namespace tutti
