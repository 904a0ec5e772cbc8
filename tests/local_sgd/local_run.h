#pragma once
// Local training of a small quadratic model: the loss of a step is half the squared distance to a target that depends
// on the rank and the step, so that every rank can compute what all others do.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <memory>
#include <string>
#include <vector>

#include "tutti/detail/local_sgd/local_sgd_algorithm.h"

namespace tutti::test {

using Tensors = std::vector<at::Tensor>;

/// The model before training: some shapes, one of them with columns that lie together.
Tensors initial_model(at::ScalarType dtype = at::kFloat);
/// The gradient of rank `rank` at step `step` (from 0).
at::Tensor gradient(const at::Tensor& parameter, int index, int rank, int step);
/// One step of plain SGD.
void sgd_step(const Tensors& model, int rank, int step, double rate);
/// The weighted mean; equal weights without.
Tensors mean_of(const std::vector<Tensors>& models, std::vector<double> weights = {});
Tensors copy_of(const Tensors& tensors);

double largest_difference(const Tensors& a, const Tensors& b);
bool same_bits(const Tensors& a, const Tensors& b);
/// Every rank must call it.
bool same_on_all_ranks(const Communicator& communicator, const Tensors& tensors);

struct RunOptions {
  LocalSgdAlgorithmOptions updates = {};
  double rate = 0.1;
  double momentum = 0;
  bool adam = false;
  at::ScalarType dtype = at::kFloat;
};

/// One rank's training.
class LocalRun {
 public:
  LocalRun(const Communicator& communicator, RunOptions options);

  /// The next optimizer step, and the algorithm's.
  void step(double weight = 1);
  void steps(int count);
  void finish() { algorithm->finish(); }
  Tensors values() const { return copy_of(parameters); }
  /// A checkpoint of everything, and its restoration in a fresh run.
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
