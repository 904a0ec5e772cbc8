#include "tutti/optim/optimizer.h"

#include <utility>

#include "tutti/core/error.h"

namespace tutti {

Optimizer::Optimizer(std::shared_ptr<torch::optim::Optimizer> optimizer, std::shared_ptr<Reducer> reducer)
    : optimizer_(std::move(optimizer)), reducer_(std::move(reducer)) {}

void Optimizer::step() {
  if (!reducer_->at_window_end()) return;
  reducer_->prepare_step();
  optimizer_->step();
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

}  // namespace tutti
