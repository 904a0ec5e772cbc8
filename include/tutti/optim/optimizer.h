#pragma once
// A prepared optimizer: a LibTorch optimizer that steps when its window ends, on gradients that are synchronized.
#include <torch/optim/optimizer.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tutti/amp/grad_scaler.h"
#include "tutti/core/call_site.h"
#include "tutti/core/logging.h"
#include "tutti/state/stateful.h"

namespace tutti {

class Reducer;

/// What a prepared optimizer is told; Accelerator::prepare() fills it in.
struct OptimizerOptions {
  /// Names of the parameters, in the order of the optimizer's groups: their state is saved under these, without them
  /// by number.
  std::vector<std::string> names{};
  /// The scale of the loss. With one, steps on gradients that overflowed are skipped.
  std::shared_ptr<GradScaler> scaler{};
  /// Step LibTorch's AdamW, Adam, SGD and Adagrad with ATen's fused kernels where these can: dense float, double and
  /// bfloat16 parameters on the CPU. The result parts from that of LibTorch's own step by rounding; the state stays the
  /// optimizer's own. Classes derived from these, and all other optimizers, run as they are. Must be the same on all
  /// ranks.
  bool fused = true;
  /// Where it says why a step was not fused.
  Logger logger{};
};

/// A small value; copies share the optimizer. Every rank must step it alike. One thread. `where` is filled in by the
/// compiler.
class Optimizer final : public Stateful {
 public:
  /// Accelerator::prepare() makes one. `reducer` holds the same parameters.
  Optimizer(std::shared_ptr<torch::optim::Optimizer> optimizer, std::shared_ptr<Reducer> reducer,
            OptimizerOptions options = {});

  /// Inside accumulate(): steps where the scope ends its window, else does nothing. Outside: steps, after synchronizing
  /// what is still this rank's own. Throws instead of stepping on gradients that cannot be vouched for.
  void step(const CallSite& where = CallSite::here());
  /// For optimizers that ask for the loss several times in a step (LBFGS). `closure` calls zero_grad(), runs forward
  /// and backward over this rank's data, and returns the loss, a scalar. After each call gradients and loss are the
  /// means over ranks, so that all ranks take the same way. Returns the first call's loss. Throws UsageError inside
  /// accumulate() (the closure runs the whole window itself) and with a loss scaler.
  at::Tensor step(const std::function<at::Tensor()>& closure, const CallSite& where = CallSite::here());
  /// Whether the last step() at a window's end left the parameters alone because gradients had overflowed: the same
  /// answer on all ranks.
  bool step_was_skipped() const { return state_->skipped; }
  /// Why the last step that was not skipped was LibTorch's own; empty when it was fused.
  const std::string& not_fused_reason() const { return state_->not_fused_reason; }
  /// Clears gradients. Inside accumulate(): before the scope's backward pass only those that a step has used; after it,
  /// where the scope ends its window, the window and its weight; on an earlier micro-batch nothing.
  void zero_grad(bool set_to_none = true);

  /// LibTorch's parameter groups, with the options of each.
  std::vector<torch::optim::OptimizerParamGroup>& param_groups() { return optimizer_->param_groups(); }
  /// The same, to read.
  const std::vector<torch::optim::OptimizerParamGroup>& param_groups() const {
    return std::as_const(*optimizer_).param_groups();
  }
  /// The learning rate of the first parameter group.
  double learning_rate() const;
  /// Sets the learning rate of all parameter groups. A schedule sets it again at its next step.
  void set_learning_rate(double rate);

  /// State by parameter name, options by group. See optimizer_state.h for which optimizers.
  StateDict state_dict() const override;
  void load_state_dict(const StateDict& state) override;

  /// LibTorch's optimizer. A step that it takes by itself is not synchronized first.
  torch::optim::Optimizer& inner() { return *optimizer_; }
  /// The same, to read.
  const torch::optim::Optimizer& inner() const { return *optimizer_; }
  /// What synchronizes its gradients.
  const std::shared_ptr<Reducer>& reducer() const { return state_->reducer; }

 private:
  friend class Accelerator;

  // What copies share.
  struct State {
    std::shared_ptr<Reducer> reducer;
    std::vector<std::string> names;
    std::function<void()> after_step{};  // on all ranks, also where the step was skipped
    bool repeats = false;                // a parameter is listed twice
    bool skipped = false;
    std::string not_fused_reason{};
  };
  void step_parameters();
  /// Its parameters have changed: all copies go on with these.
  void rebind(std::shared_ptr<Reducer> reducer, std::vector<std::string> names);

  std::shared_ptr<torch::optim::Optimizer> optimizer_;
  std::shared_ptr<GradScaler> scaler_;
  bool fused_;
  Logger logger_;
  std::shared_ptr<State> state_;
};

}  // namespace tutti
