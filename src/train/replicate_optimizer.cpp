#include "train/replicate_optimizer.h"

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "checkpoint/agreement.h"
#include "train/broadcast_state.h"
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

}  // namespace

void replicate_optimizer(torch::optim::Optimizer& optimizer, const Communicator& communicator) {
  if (communicator.size() == 1) return;
  const std::vector<std::string> names = numbered(optimizer);
  const StateDict state = broadcast_state(communicator, call_name, [&] {
    return optimizer.state().empty() ? StateDict() : optimizer_state(optimizer, names);
  });
  checkpoint::on_all_ranks(communicator, call_name, [&] {
    if (communicator.rank() == 0) return std::string();
    optimizer.state().clear();  // removes state that rank 0 does not have
    if (!state.empty()) load_optimizer_state(optimizer, names, state);
    return std::string();
  });
}

}  // namespace tutti
