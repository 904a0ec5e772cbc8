#pragma once
// A prepared optimizer: a LibTorch optimizer that steps at the end of an accumulation window on synchronized gradients.
#include <torch/optim/optimizer.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tutti/amp/grad_scaler.h"
#include "tutti/core/logging.h"
#include "tutti/detail/core/call_site.h"
#include "tutti/state/stateful.h"

namespace tutti {

class Reducer;

/// Options of a prepared optimizer; Accelerator::prepare() fills them in.
struct OptimizerOptions {
  /// Names of the parameters in the order of the optimizer's groups; state is saved under them. Empty: state is saved
  /// under the parameters' numbers.
  std::vector<std::string> names{};
  /// The loss scale. If set, steps on gradients that overflowed are skipped.
  std::shared_ptr<GradScaler> scaler{};
  /// Step LibTorch's AdamW, Adam, SGD and Adagrad with ATen's fused kernels, for dense float, double and bfloat16
  /// parameters on the CPU and on accelerators that have these kernels. The result differs from LibTorch's step by
  /// rounding; the state stays the optimizer's. Derived classes and all other optimizers run LibTorch's step. Must be
  /// equal on all ranks.
  bool fused = true;
  /// Receives the reason if a step is not fused.
  Logger logger{};
  /// Returns the name of a parameter that was added after the construction, for errors; empty if it has none.
  std::function<std::string(const at::Tensor&)> name_of{};
  /// The reducer of parameters of which every rank trains its own, in local steps; null if there are none.
  std::shared_ptr<Reducer> local_reducer{};
};

/// A handle: copies share the optimizer. Every rank must call step() in the same order. Not thread safe. The compiler
/// fills in `where`.
class Optimizer final : public Stateful {
 public:
  /// Accelerator::prepare() returns one. `reducer` must hold the same parameters.
  Optimizer(std::shared_ptr<torch::optim::Optimizer> optimizer, std::shared_ptr<Reducer> reducer,
            OptimizerOptions options = {});

  /// Inside accumulate(): steps if the scope ends its window, otherwise does nothing. Outside: synchronizes pending
  /// gradients, then steps. Throws UsageError if a gradient may not be the mean over ranks, and for a parameter that
  /// has a gradient and was added to the optimizer after prepare(), which no reducer synchronizes. Also throws it
  /// outside of scopes if the window's last scope is still to come, unless Accelerator::synchronize() has been called
  /// there.
  void step(const CallSite& where = CallSite::here());
  /// For optimizers that evaluate the loss several times in a step (LBFGS). `closure` calls zero_grad(), runs forward
  /// and backward over this rank's data, and returns the loss, a scalar. After each evaluation, gradients and loss are
  /// means over ranks, so all ranks follow the same path. Returns the loss of the first evaluation. Throws UsageError
  /// inside accumulate(), because the closure runs the whole window, and with a loss scaler.
  at::Tensor step(const std::function<at::Tensor()>& closure, const CallSite& where = CallSite::here());
  /// Whether the last step() at the end of a window was skipped because gradients overflowed. Equal on all ranks.
  bool step_was_skipped() const { return state_->skipped; }
  /// Why the last step that was not skipped ran LibTorch's step; empty if it was fused.
  const std::string& not_fused_reason() const { return state_->not_fused_reason; }
  /// Clears gradients. Inside accumulate() it clears:
  /// - before the scope's backward pass: only the gradients that a step has used;
  /// - after the backward pass: the window and its weight if the scope ends its window, otherwise nothing.
  void zero_grad(bool set_to_none = true);

  /// LibTorch's parameter groups with their options.
  std::vector<torch::optim::OptimizerParamGroup>& param_groups() { return optimizer_->param_groups(); }
  /// The parameter groups, read-only.
  const std::vector<torch::optim::OptimizerParamGroup>& param_groups() const {
    return std::as_const(*optimizer_).param_groups();
  }
  /// The learning rates of all parameter groups in the last step at the end of a window, also if it was skipped; empty
  /// before the first one, and for an optimizer without a learning rate.
  const std::vector<double>& last_step_rates() const { return state_->step_rates; }
  /// The learning rate of the first parameter group, 0 for an optimizer without one; Scheduler::last_rates() returns
  /// those of all groups.
  double learning_rate() const;
  /// Sets the learning rate of all parameter groups to the same rate. A schedule overwrites it at its next step. Throws
  /// UsageError for a rate that is negative or not finite, and for an optimizer without a learning rate.
  void set_learning_rate(double rate);

  /// State by parameter name, options by group, for Adam, AdamW, SGD, RMSprop and Adagrad. For any other class, the
  /// values that its save() writes, and none before the first step if it writes none. Its load() must replace all
  /// state, and clear it if the archive has no values. Throws UsageError if save() writes nothing after a step.
  StateDict state_dict() const override;
  void load_state_dict(const StateDict& state) override;

  /// LibTorch's optimizer. Its own step() does not synchronize gradients.
  torch::optim::Optimizer& inner() { return *optimizer_; }
  /// LibTorch's optimizer, read-only.
  const torch::optim::Optimizer& inner() const { return *optimizer_; }
  /// The reducer that synchronizes its gradients. Throws UsageError after Accelerator::free_memory(), as step() and
  /// zero_grad() do.
  const std::shared_ptr<Reducer>& reducer() const;

 private:
  friend class Accelerator;

  struct Listed {
    const at::TensorImpl* parameter;
    bool synchronized;
  };
  // Shared by copies.
  struct State {
    std::shared_ptr<Reducer> reducer;
    std::shared_ptr<Reducer> local_reducer;
    std::vector<std::string> names;
    std::function<std::string(const at::Tensor&)> name_of{};
    std::function<void()> after_step{};  // on all ranks, also after a skipped step
    std::vector<Listed> listed{};        // the parameters of all groups, when they were listed last
    bool repeats = false;                // a parameter is listed twice
    bool skipped = false;
    bool has_stepped = false;  // since the construction or the last load_state_dict()
    bool has_rates = true;     // the options have a learning rate
    std::string not_fused_reason{};
    std::vector<double> step_rates{};  // the learning rates of the last step
  };
  /// Connects the optimizer and its reducer.
  void bind();
  /// Records the parameters of the groups, and which of them the reducer synchronizes.
  void list_parameters();
  /// Throws UsageError for a parameter that has a gradient and that the reducer does not synchronize.
  void require_synchronized();
  void step_parameters();
  void record_rates();
  /// Releases the reducers, in all copies.
  void release();
  /// Replaces the parameters in all copies.
  void rebind(std::shared_ptr<Reducer> reducer, std::shared_ptr<Reducer> local_reducer, std::vector<std::string> names);

  std::shared_ptr<torch::optim::Optimizer> optimizer_;
  std::shared_ptr<GradScaler> scaler_;
  bool fused_;
  Logger logger_;
  std::shared_ptr<State> state_;
};

}  // namespace tutti
