#pragma once
// What random moves mean to one model, on one process: a list of what every pass of all ranks has brought, as
// docs/gradients.md tells it, without states and without synchronization.
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

  /// Trains `parameters`, which are its own, with the learning rate and momentum of the other side.
  explicit ReferenceModel(std::vector<at::Tensor> parameters);

  const std::vector<at::Tensor>& parameters() const { return parameters_; }
  /// The mean over all ranks and micro-batches so far.
  Gradients gradients() const;
  Mean mean() const { return mean_; }
  bool in_scope() const { return scope_ != 0; }
  bool at_window_end() const { return scope_ == 0 || last_; }
  /// Whether its window was begun by passes in scopes.
  /// Whether some rank has left out a pass of the window.
  bool uneven() const;
  bool empty() const { return contributions_.empty(); }
  bool weighted() const { return !contributions_.empty() && contributions_.front().scope != 0; }
  double norm() const;

  void open(bool last);
  void close();
  /// Whether a pass is an error now.
  bool refuses_pass() const;
  /// The sum of all ranks' gradients, outside of scopes their mean; `weight`: of the ranks whose pass it was.
  void pass(const Gradients& sum, const std::vector<double>& weights, Mean mean);
  void synchronized() { mean_ = Mean::yes; }
  void scale(double factor);
  void step();
  void zero(bool in_place);
  void zero_behind(bool in_place);
  void discard() { forget(false); }
  /// After an error that all ranks had: everything is cleared, and the parameters are what they are.
  void start_again(const std::vector<at::Tensor>& parameters);

 private:
  struct Contribution {
    Gradients sum;
    int scope;
    std::vector<double> weights;  // by rank; of those that brought something
  };
  void finish(bool used);
  void forget(bool in_place);

  std::vector<at::Tensor> parameters_;
  torch::optim::SGD optimizer_;
  std::vector<Contribution> contributions_;
  std::optional<Gradients> base_;  // of a window that is over
  bool base_used_ = false;
  int base_scope_ = 0;
  Gradients zeros_;  // what was cleared in place
  Mean mean_ = Mean::yes;
  int scope_ = 0;
  int scopes_ = 0;
  bool last_ = false;
  bool stepped_ = false;
};

torch::optim::SGDOptions options_of_moves();

}  // namespace tutti::test
