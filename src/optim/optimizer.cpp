#include "tutti/optim/optimizer.h"

#include <utility>

#include "tutti/optim/optimizer_state.h"

namespace tutti {

Optimizer::Optimizer(std::shared_ptr<torch::optim::Optimizer> optimizer, std::shared_ptr<Reducer> reducer,
                     std::vector<std::string> names, std::shared_ptr<GradScaler> scaler)
    : optimizer_(std::move(optimizer)),
      reducer_(std::move(reducer)),
      names_(std::move(names)),
      scaler_(std::move(scaler)) {
  if (!names_.empty()) return;
  for (const auto& group : optimizer_->param_groups()) {
    for (std::size_t i = 0; i < group.params().size(); ++i) names_.push_back(std::to_string(names_.size()));
  }
}

void Optimizer::step() {
  if (!reducer_->at_window_end()) return;
  reducer_->prepare_step();
  state_->skipped = scaler_ && reducer_->overflowed();
  if (!state_->skipped) optimizer_->step();
  if (scaler_) scaler_->update(state_->skipped);
  reducer_->stepped();
}

void Optimizer::zero_grad(bool set_to_none) {
  reducer_->clear(set_to_none);
}

double Optimizer::learning_rate() const {
  return optimizer_->param_groups().front().options().get_lr();
}

void Optimizer::set_learning_rate(double rate) {
  for (torch::optim::OptimizerParamGroup& group : optimizer_->param_groups()) group.options().set_lr(rate);
}

StateDict Optimizer::state_dict() const {
  return optimizer_state(*optimizer_, names_);
}

void Optimizer::load_state_dict(const StateDict& state) {
  load_optimizer_state(*optimizer_, names_, state);
}

}  // namespace tutti
