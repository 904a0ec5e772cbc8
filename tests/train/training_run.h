#pragma once
// A small training run with everything that a checkpoint must hold: shuffled data, accumulation, a schedule, AdamW, and
// a model that draws random numbers.
#include <torch/nn/module.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>

#include <string>
#include <vector>

#include "support/temporary_folder.h"
#include "support/training.h"
#include "tutti/train/accelerator.h"

namespace tutti::test {

/// Inputs and targets by number, in one tensor each: a dataset.
struct Samples {
  std::int64_t count = 0;
  std::size_t size() const { return static_cast<std::size_t>(count); }
  Batch get_batch(const std::vector<std::size_t>& indices) const;
};

struct NoisyImpl : torch::nn::Module {
  explicit NoisyImpl(double dropout = 0.5);
  at::Tensor forward(const at::Tensor& x);
  torch::nn::Linear first{nullptr};
  torch::nn::Linear second{nullptr};
  torch::nn::Dropout dropout{nullptr};
};
TORCH_MODULE(Noisy);

/// All bytes of the model's parameters and buffers.
std::string bytes_of(const torch::nn::Module& model);

}  // namespace tutti::test
