#include "train/replicate_optimizer.h"

#include <c10/util/Type.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <typeinfo>
#include <vector>

#include "checkpoint/agreement.h"
#include "core/different_line.h"
#include "optim/archive_state.h"
#include "optim/step_options.h"
#include "sync/step_options.h"
#include "train/broadcast_state.h"
#include "tutti/core/error.h"
#include "tutti/detail/comm/internal_call.h"
#include "tutti/detail/optim/optimizer_state.h"

namespace tutti {

namespace {

constexpr const char* call_name = "optimizer state";

// Numbers parameters by their order, which is equal on all ranks. A parameter may be listed twice. Ignored ones have a
// name that begins with "ignored".
std::vector<std::string> numbered(const torch::optim::Optimizer& optimizer,
                                  const std::function<bool(const at::Tensor&)>& is_ignored) {
  std::map<const at::TensorImpl*, std::size_t> numbers;
  std::vector<std::string> names;
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      const auto number = numbers.emplace(parameter.unsafeGetTensorImpl(), numbers.size()).first->second;
      names.push_back((is_ignored(parameter) ? "ignored" : "") + std::to_string(number));
    }
  }
  return names;
}

bool is_of_ignored(const std::string& key) {
  return key.starts_with("state.ignored");
}

/// What must be equal on all ranks, one a line: the type, the groups, and options that cannot be replaced.
std::string kind_of(const torch::optim::Optimizer& optimizer) {
  std::string text = "an optimizer of type " + c10::demangle(typeid(optimizer).name()) + '\n';
  for (std::size_t i = 0; i < optimizer.param_groups().size(); ++i) {
    text += "parameter group " + std::to_string(i) + " with " +
            std::to_string(optimizer.param_groups()[i].params().size()) + " parameters\n";
  }
  if (has_parameter_names(optimizer)) return text;
  return text + sync::describe(step_options_of({std::shared_ptr<void>(), &optimizer}));
}

}  // namespace

void replicate_optimizer(torch::optim::Optimizer& optimizer, const Communicator& communicator,
                         const std::function<bool(const at::Tensor&)>& is_ignored) {
  if (communicator.size() == 1) return;
  const auto kinds = communicator.all_gather_object(kind_of(optimizer), comm::internal_call("optimizer"));
  if (const std::string difference = first_different_line(kinds); !difference.empty()) {
    throw MismatchError("different optimizers on two ranks: " + difference + ". Make the same optimizer on all ranks");
  }
  const std::vector<std::string> names = numbered(optimizer, is_ignored);
  const bool any_ignored = std::ranges::any_of(names, [](const auto& name) { return name.starts_with("ignored"); });
  if (any_ignored && !has_parameter_names(optimizer)) {
    throw UsageError("ignored_parameters in an optimizer that may couple its parameters (" +
                     c10::demangle(typeid(optimizer).name()) + "): give them an optimizer of their own");
  }
  StateDict state = broadcast_state(communicator, call_name, [&] {
    // The state of another class may be in its members.
    const bool has_no_state =
        optimizer.state().empty() && !has_parameter_names(optimizer) && state_from_save(optimizer).empty();
    if (has_no_state) return StateDict();
    const StateDict all = optimizer_state(optimizer, names);
    StateDict shared;
    for (const auto& [key, value] : all.values()) {
      if (!is_of_ignored(key)) shared.set(key, value);
    }
    return shared;
  });
  checkpoint::on_all_ranks(communicator, call_name, [&] {
    if (communicator.rank() == 0) return std::string();
    if (any_ignored) {
      const StateDict of_this_rank = optimizer_state(optimizer, names);
      for (const auto& [key, value] : of_this_rank.values()) {
        if (is_of_ignored(key)) state.set(key, value);
      }
    }
    optimizer.state().clear();  // removes state that rank 0 does not have
    if (!state.empty()) load_optimizer_state(optimizer, names, state);
    return std::string();
  });
}

}  // namespace tutti
