#pragma once
// A prepared optimizer: a LibTorch optimizer that steps when its window ends, on gradients that are synchronized.
#include <torch/optim/optimizer.h>

#include <memory>
#include <string>
#include <vector>

#include "tutti/amp/grad_scaler.h"
#include "tutti/state/stateful.h"
#include "tutti/sync/reducer.h"

namespace tutti {

/// A small value; copies share the optimizer. Every rank must step it alike. One thread.
class Optimizer final : public Stateful {
 public:
  /// `names` of the parameters in the order of the optimizer's groups: under these their state is saved; without them
  /// by number. With a `scaler` steps on gradients that overflowed are skipped.
  Optimizer(std::shared_ptr<torch::optim::Optimizer> optimizer, std::shared_ptr<Reducer> reducer,
            std::vector<std::string> names = {}, std::shared_ptr<GradScaler> scaler = nullptr);

  /// Inside accumulate(): steps where the scope ends its window, else does nothing. Outside: steps, after synchronizing
  /// what is still this rank's own. Throws instead of stepping on gradients that cannot be vouched for.
  void step();
  /// Whether the last step() at a window's end left the parameters alone because gradients had overflowed: the same
  /// answer on all ranks.
  bool step_was_skipped() const { return state_->skipped; }
  /// Clears gradients. Inside accumulate() only those that a step has used, so it may stand anywhere in the scope.
  void zero_grad(bool set_to_none = true);

  /// Of the first parameter group.
  double learning_rate() const;
  /// Of all parameter groups.
  void set_learning_rate(double rate);

  /// State by parameter name, options by group. See optimizer_state.h for which optimizers.
  StateDict state_dict() const override;
  void load_state_dict(const StateDict& state) override;

  torch::optim::Optimizer& inner() { return *optimizer_; }
  const torch::optim::Optimizer& inner() const { return *optimizer_; }
  const std::shared_ptr<Reducer>& reducer() const { return reducer_; }

 private:
  struct State {
    bool skipped = false;
  };

  std::shared_ptr<torch::optim::Optimizer> optimizer_;
  std::shared_ptr<Reducer> reducer_;
  std::vector<std::string> names_;
  std::shared_ptr<GradScaler> scaler_;
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

}  // namespace tutti
