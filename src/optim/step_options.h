#pragma once
// The options of an optimizer's parameter groups: whether they have a learning rate, and all for a comparison of ranks.
#include <torch/optim/optimizer.h>

#include <memory>
#include <string>
#include <vector>

#include "tutti/detail/sync/reducer.h"

namespace tutti {

/// False if the options of a group have no learning rate.
bool has_learning_rate(const torch::optim::Optimizer& optimizer);
/// Throws UsageError for an optimizer without a learning rate. `user`: the class or function that needs it.
void require_learning_rate(const torch::optim::Optimizer& optimizer, const std::string& user);
/// The learning rates of all parameter groups.
std::vector<double> learning_rates_of(const torch::optim::Optimizer& optimizer);

/// Passes the number of parameters and all options of each group to its sink. Of options that tutti does not know, it
/// passes the learning rate only, if they have one.
StepOptions step_options_of(std::shared_ptr<const torch::optim::Optimizer> optimizer);

}  // namespace tutti
