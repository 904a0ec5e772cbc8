#pragma once
// Computes what random moves mean to one model, on one process. The model lists the contributions of all ranks' passes,
// as docs/gradients.md defines them, without states and without synchronization.
#include <ATen/core/TensorBody.h>
#include <torch/optim/sgd.h>

#include <optional>
#include <vector>

#include "sync/random_moves.h"

namespace tutti::test {

/// Whether every rank's .grad holds the mean.
enum class Mean { no, perhaps, yes };

class ReferenceModel {
 public:
  using Gradients = std::vector<at::Tensor>;  // undefined where no rank has used the parameter

  /// Trains `parameters` with options_of_moves(). The caller must not change the parameters.
  explicit ReferenceModel(std::vector<at::Tensor> parameters);

  const std::vector<at::Tensor>& parameters() const { return parameters_; }
  /// The mean over all ranks and micro-batches so far.
  Gradients gradients() const;
  Mean mean() const { return mean_; }
  bool in_scope() const { return scope_ != 0; }
  bool at_window_end() const { return scope_ == 0 || last_; }
  /// True if a rank skipped a pass of the window.
  bool uneven() const;
  /// True if no pass of the window has reached the model.
  bool empty() const { return !reached(); }
  /// True if the open scope's passes have reached other models only, so that the mean lacks the scope's weight.
  bool lacks_weight() const {
    return reached() && !reached_in_scope() && mean_ == Mean::no && contributions_.back().scope == scope_;
  }
  /// True if the window's passes ran in scopes.
  bool weighted() const { return !contributions_.empty() && contributions_.front().scope != 0; }
  double norm() const;

  void open(bool last);
  void close();
  /// True if a pass now is an error.
  bool refuses_pass() const;
  /// True if the open scope does not end its window, whose passes were outside of scopes: a step that does nothing is
  /// an error, unless a pass of the scope has reached another model.
  bool refuses_step() const { return !at_window_end() && reached() && !weighted(); }
  /// Adds a pass. `sum` is the sum of all ranks' gradients in a scope, and their mean outside of scopes. `weights` is
  /// by rank: 0 for a rank that skipped the pass, and 0 outside of scopes.
  void pass(const Gradients& sum, const std::vector<double>& weights, Mean mean);
  /// A pass of the scope over other models: the scope's weight counts in the open window. `weights` as above.
  void weigh(const std::vector<double>& weights);
  void synchronized() { mean_ = Mean::yes; }
  void scale(double factor);
  void step();
  void zero(bool in_place);
  void zero_behind(bool in_place);
  void discard() { forget(false); }
  /// Recovers from an error on all ranks: clears all gradients and copies `parameters`.
  void start_again(const std::vector<at::Tensor>& parameters);

 private:
  struct Contribution {
    Gradients sum;
    int scope;
    std::vector<double> weights;  // by rank; 0 for a rank that skipped the pass
  };
  bool reached() const;
  bool reached_in_scope() const;
  void finish(bool used);
  void forget(bool in_place);
  void forget_base(bool in_place);

  std::vector<at::Tensor> parameters_;
  torch::optim::SGD optimizer_;
  std::vector<Contribution> contributions_;
  std::optional<Gradients> base_;  // gradients of a window that has ended
  bool base_used_ = false;
  int base_scope_ = 0;
  Gradients zeros_;  // zeros of gradients that were cleared in place
  Mean mean_ = Mean::yes;
  int scope_ = 0;
  int scopes_ = 0;
  bool last_ = false;
  bool stepped_ = false;
  bool complete_ = false;  // the window's last scope has closed without a step
};

torch::optim::SGDOptions options_of_moves();

}  // namespace tutti::test
