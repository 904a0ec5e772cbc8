#include "tutti/optim/optimizer.h"

#include <optional>
#include <utility>

#include "optim/fused_step.h"
#include "tutti/optim/optimizer_state.h"

namespace tutti {

Optimizer::Optimizer(std::shared_ptr<torch::optim::Optimizer> optimizer, std::shared_ptr<Reducer> reducer,
                     OptimizerOptions options)
    : optimizer_(std::move(optimizer)), reducer_(std::move(reducer)), options_(std::move(options)) {
  std::vector<std::string>& names = options_.names;
  if (!names.empty()) return;
  for (const auto& group : optimizer_->param_groups()) {
    for (std::size_t i = 0; i < group.params().size(); ++i) names.push_back(std::to_string(names.size()));
  }
}

void Optimizer::step() {
  if (!reducer_->at_window_end()) return;
  reducer_->prepare_step();
  state_->skipped = options_.scaler && reducer_->overflowed();
  if (!state_->skipped) step_parameters();
  if (options_.scaler) options_.scaler->update(state_->skipped);
  reducer_->stepped();
}

void Optimizer::step_parameters() {
  const std::optional<std::string> refusal =
      options_.fused ? fused_step(*optimizer_) : std::optional<std::string>("fused steps are turned off");
  if (refusal) optimizer_->step();
  std::string why = refusal.value_or("");
  if (!why.empty() && why != state_->not_fused_because) {
    options_.logger.info("the optimizer takes LibTorch's own step, not a fused one: " + why);
  }
  state_->not_fused_because = std::move(why);
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
  return optimizer_state(*optimizer_, options_.names);
}

void Optimizer::load_state_dict(const StateDict& state) {
  load_optimizer_state(*optimizer_, options_.names, state);
}

}  // namespace tutti
