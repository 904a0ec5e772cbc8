#include "train/replicate_optimizer.h"

#include <c10/util/Type.h>

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <typeinfo>
#include <vector>

#include "checkpoint/agreement.h"
#include "core/different_line.h"
#include "optim/step_options.h"
#include "sync/step_options.h"
#include "train/broadcast_state.h"
#include "tutti/core/error.h"
#include "tutti/detail/comm/internal_call.h"
#include "tutti/detail/optim/optimizer_state.h"

namespace tutti {

namespace {

constexpr const char* call_name = "optimizer state";

// Numbers parameters by their order, which is equal on all ranks. A parameter may be listed twice.
std::vector<std::string> numbered(const torch::optim::Optimizer& optimizer) {
  std::map<const at::TensorImpl*, std::size_t> numbers;
  std::vector<std::string> names;
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      const auto number = numbers.emplace(parameter.unsafeGetTensorImpl(), numbers.size()).first->second;
      names.push_back(std::to_string(number));
    }
  }
  return names;
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

void replicate_optimizer(torch::optim::Optimizer& optimizer, const Communicator& communicator) {
  if (communicator.size() == 1) return;
  const auto kinds = communicator.all_gather_object(kind_of(optimizer), comm::internal_call("optimizer"));
  if (const std::string difference = first_different_line(kinds); !difference.empty()) {
    throw MismatchError("different optimizers on two ranks: " + difference + ". Make the same optimizer on all ranks");
  }
  const std::vector<std::string> names = numbered(optimizer);
  const StateDict state = broadcast_state(communicator, call_name, [&] {
    const bool has_no_state = optimizer.state().empty() && !has_parameter_names(optimizer);
    return has_no_state ? StateDict() : optimizer_state(optimizer, names);
  });
  checkpoint::on_all_ranks(communicator, call_name, [&] {
    if (communicator.rank() == 0) return std::string();
    optimizer.state().clear();  // removes state that rank 0 does not have
    if (!state.empty()) load_optimizer_state(optimizer, names, state);
    return std::string();
  });
}

}  // namespace tutti
