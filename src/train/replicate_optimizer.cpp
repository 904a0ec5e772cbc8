#include "train/replicate_optimizer.h"

#include <c10/util/Exception.h>
#include <torch/serialize.h>

#include <sstream>
#include <string>
#include <utility>

#include "optim/repeated_parameters.h"
#include "tutti/core/error.h"

namespace tutti {

namespace {

// The first letter of what rank 0 gives.
constexpr char is_state = 's';
constexpr char is_error = 'e';

std::string state_of(const torch::optim::Optimizer& optimizer) {
  if (optimizer.state().empty()) return {};
  try {
    std::ostringstream stream;
    torch::save(optimizer, stream);
    return is_state + std::move(stream).str();
  } catch (const c10::Error& error) {
    return is_error + std::string(error.what_without_backtrace());
  }
}

}  // namespace

void replicate_optimizer(torch::optim::Optimizer& optimizer, const Communicator& communicator) {
  if (communicator.size() == 1) return;
  const WithoutRepeats each_once(optimizer);
  std::string state;
  if (communicator.rank() == 0) state = state_of(optimizer);
  state = communicator.broadcast_object(state, 0, {.name = "optimizer state"});
  if (!state.empty() && state.front() == is_error) {
    throw UsageError("the optimizer's state cannot be made that of rank 0 (" + state.substr(1) +
                     "): prepare a new optimizer");
  }
  if (communicator.rank() == 0) return;
  optimizer.state().clear();  // what rank 0 has not must go
  if (state.empty()) return;
  std::istringstream stream(state.substr(1));
  torch::load(optimizer, stream);
}

}  // namespace tutti
