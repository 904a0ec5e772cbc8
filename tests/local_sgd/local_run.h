#pragma once
// Local training of a small quadratic model. The loss of a step is half the squared distance to a target. The target
// depends on the rank and the step, so every rank can compute the models of all ranks.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <memory>
#include <string>
#include <vector>

#include "support/difference.h"
#include "tutti/detail/local_sgd/local_sgd_algorithm.h"

namespace tutti::test {

using Tensors = std::vector<at::Tensor>;

/// The model before training: several shapes, one of them with contiguous columns.
Tensors initial_model(at::ScalarType dtype = at::kFloat);
/// The gradient of rank `rank` at step `step` (from 0).
at::Tensor gradient(const at::Tensor& parameter, int index, int rank, int step);
/// One step of plain SGD.
void sgd_step(const Tensors& model, int rank, int step, double rate);
/// The mean, weighted by `weights` if there are any.
Tensors mean_of(const std::vector<Tensors>& models, std::vector<double> weights = {});
Tensors copy_of(const Tensors& tensors);
bool same_bits(const Tensors& a, const Tensors& b);
/// Collective.
bool same_on_all_ranks(const Communicator& communicator, const Tensors& tensors);

struct RunOptions {
  LocalSgdAlgorithmOptions updates = {};
  double rate = 0.1;
  double momentum = 0;
  bool adam = false;
  at::ScalarType dtype = at::kFloat;
  at::Device device = at::kCPU;
};

/// One rank's training.
class LocalRun {
 public:
  LocalRun(const Communicator& communicator, RunOptions options);

  /// Makes the next optimizer step and calls the algorithm's step().
  void step(double weight = 1, const std::vector<double>& rates = {});
  void steps(int count);
  void finish() { algorithm->finish(); }
  Tensors values() const { return copy_of(parameters); }
  /// Saves the whole run. load() restores it in a new run.
  StateDict save() const;
  void restore(const StateDict& state);

  int rank;
  int done = 0;
  Tensors parameters;
  at::Tensor buffer;   ///< floating: the rank's number times steps
  at::Tensor counter;  ///< int64: steps
  std::shared_ptr<torch::optim::Optimizer> optimizer;
  std::unique_ptr<LocalSgdAlgorithm> algorithm;

 private:
  std::vector<std::string> names_;
};

}  // namespace tutti::test
