#include "train/replicate_optimizer.h"

#include <torch/serialize.h>

#include <sstream>

namespace tutti {

void replicate_optimizer(torch::optim::Optimizer& optimizer, const Communicator& communicator) {
  if (communicator.size() == 1) return;
  std::string state;
  if (communicator.rank() == 0 && !optimizer.state().empty()) {
    std::ostringstream stream;
    torch::save(optimizer, stream);
    state = stream.str();
  }
  state = communicator.broadcast_object(state, 0, {.name = "optimizer state"});
  if (communicator.rank() == 0) return;
  if (state.empty()) {
    optimizer.state().clear();
    return;
  }
  std::istringstream stream(state);
  torch::load(optimizer, stream);
}

}  // namespace tutti
