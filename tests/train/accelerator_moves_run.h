#pragma once
// Runs a random training program on one rank, and the same program for all ranks on this process, without tutti.
#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "support/temporary_folder.h"
#include "train/accelerator_moves.h"
#include "tutti/comm/communicator.h"
#include "tutti/optim/optimizer.h"

namespace tutti {
class Accelerator;
}

namespace tutti::test {

/// One part of the model: two layers with BatchNorm between them, and a parameter that is frozen at first.
class PartImpl : public torch::nn::Module {
 public:
  PartImpl(std::uint64_t seed, bool is_complex);
  /// Returns a scalar for samples of 3 features.
  at::Tensor forward(const at::Tensor& samples);
  /// Adds and returns a parameter of the forward pass.
  at::Tensor add_layer();
  /// Unfreezes and returns the parameter that is frozen at first.
  at::Tensor unfreeze();

 private:
  torch::nn::Linear in_{nullptr};
  torch::nn::BatchNorm1d norm_{nullptr};
  torch::nn::Linear out_{nullptr};
  at::Tensor late_;
  at::Tensor complex_;  // undefined if the part has no complex parameter
  std::vector<at::Tensor> added_;
};
TORCH_MODULE(Part);

/// The model: both parts. The second part reads the first part's result as a constant.
class PartsImpl : public torch::nn::Module {
 public:
  explicit PartsImpl(const TrainingProgram& program);
  std::array<at::Tensor, 2> losses(const at::Tensor& samples);
  Part& part(int index) { return parts_[index]; }

 private:
  std::array<Part, 2> parts_{nullptr, nullptr};
};
TORCH_MODULE(Parts);

class TrainingRun {
 public:
  TrainingRun(const TrainingProgram& program, const Communicator& communicator);
  ~TrainingRun();

  /// Runs all iterations. Returns the failure, the same on all ranks; empty if each iteration ended as one process, or
  /// with an error on all ranks where the program expects one.
  std::string run();
  int completed() const { return completed_; }
  int refused() const { return refused_; }

 private:
  /// What one process has for a rank: a model with that rank's buffers.
  struct Replica {
    Parts model;
    std::array<at::Tensor, 2> losses{};
  };

  std::string run_iteration(const TrainingIteration& iteration);
  void run_move(const TrainingMove& move);
  void start();
  /// Unfreezes or adds a parameter.
  void grow(const TrainingMove& move);
  void resume();
  void gather(const TrainingMove& move);
  void prepare();
  void recover();
  void run_on_one_process(const TrainingMove& move);
  void average_gradients(int part);
  void step_replicas(int part);
  void synchronize_replica_buffers();
  void restart_replicas();
  std::string difference() const;

  const TrainingProgram& program_;
  Communicator communicator_;
  Communicator status_;  // for the test's own communication
  std::unique_ptr<Accelerator> accelerator_;
  Parts model_;
  std::array<std::shared_ptr<torch::optim::SGD>, 2> sgd_;
  std::array<std::optional<Optimizer>, 2> optimizers_;
  std::array<at::Tensor, 2> losses_;
  std::vector<Replica> replicas_;
  std::array<std::shared_ptr<torch::optim::SGD>, 2> replica_sgd_;  // of the first replica
  std::vector<TrainingMove> grown_;  // the moves that have added a parameter to an optimizer
  TemporaryFolder folder_;           // of checkpoints; rank 0's is used
  int saves_ = 0;
  std::string found_;
  int completed_ = 0;
  int refused_ = 0;
};

}  // namespace tutti::test
