#pragma once
// An exponential moving average of the parameters, which usually generalizes better than the last parameters.
//
// Polyak and Juditsky, "Acceleration of stochastic approximation by averaging", SIAM J. Control Optim. 1992; the
// warm-up of the decay is TensorFlow's ExponentialMovingAverage(num_updates).
#include <torch/nn/module.h>

#include <map>
#include <string>

#include "tutti/train/callback.h"

namespace tutti {

struct NamedParameter;

/// Options of Ema.
struct EmaOptions {
  /// average = decay * average + (1 - decay) * parameter, after every optimizer step; in (0, 1).
  double decay = 0.999;
  /// Use min(decay, (1 + steps) / (10 + steps)), so that the first steps have little weight.
  bool warmup = true;
  /// Evaluate with the average instead of the parameters.
  bool evaluate_average = true;
  /// The name of the callback's state in checkpoints. Several callbacks of this class need different names.
  std::string name = "ema";
};

/// Every rank keeps the same average, without communication, as long as parameters are equal on all ranks. In local
/// steps (LocalSGD) each rank averages its own parameters, and the averages stay different after finish(). Buffers
/// (BatchNorm's statistics) are not averaged. The averages of parameters in fp16 and bf16 are float32.
class Ema final : public Callback {
 public:
  /// Throws UsageError for a decay outside (0, 1). Pass it to Trainer::add_callback() on every rank.
  explicit Ema(EmaOptions options = {});

  std::string name() const override { return options_.name; }
  StateDict state_dict() const override;
  void load_state_dict(const StateDict& state) override;
  void on_fit_start(TrainerContext& trainer) override;
  void on_optimizer_step_end(TrainerContext& trainer) override;
  void on_evaluate_start(TrainerContext& trainer) override;
  void on_evaluate_exit(TrainerContext& trainer) override;

  /// The averages by parameter name; empty before fit(). A parameter with several names appears under the first.
  const std::map<std::string, at::Tensor>& average() const { return average_; }
  /// Swaps the model's parameters and the average. A second call restores them.
  void swap(torch::nn::Module& model);

 private:
  void swap_rounded(const NamedParameter& parameter, at::Tensor& average);

  EmaOptions options_;
  bool evaluates_ = false;  // the model has the averages
  std::int64_t steps_ = 0;
  std::map<std::string, at::Tensor> average_;
  std::map<std::string, at::Tensor> exact_;  // while a model of half precision has the rounded averages
};

}  // namespace tutti
