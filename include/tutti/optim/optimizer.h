#pragma once
// A prepared optimizer: a LibTorch optimizer that steps when its window ends, on gradients that are synchronized.
#include <torch/optim/optimizer.h>

#include <memory>

#include "tutti/sync/reducer.h"

namespace tutti {

/// A small value; copies share the optimizer. Every rank must step it alike. One thread.
class Optimizer {
 public:
  Optimizer(std::shared_ptr<torch::optim::Optimizer> optimizer, std::shared_ptr<Reducer> reducer);

  /// Inside accumulate(): steps where the scope ends its window, else does nothing. Outside: steps, after synchronizing
  /// what is still this rank's own. Throws instead of stepping on gradients that cannot be vouched for.
  void step();
  /// Clears gradients. Inside accumulate() only those that a step has used, so it may stand anywhere in the scope.
  void zero_grad(bool set_to_none = true);

  /// Of the first parameter group.
  double learning_rate() const;
  /// Of all parameter groups.
  void set_learning_rate(double rate);

  torch::optim::Optimizer& inner() { return *optimizer_; }
  const torch::optim::Optimizer& inner() const { return *optimizer_; }
  const std::shared_ptr<Reducer>& reducer() const { return reducer_; }

 private:
  std::shared_ptr<torch::optim::Optimizer> optimizer_;
  std::shared_ptr<Reducer> reducer_;
};

}  // namespace tutti
