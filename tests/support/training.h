#pragma once
// Small models and data for tests, the same on every rank and in every process. The values do not depend on
// LibTorch's global generator, which ranks as threads share.
#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <string>
#include <vector>

namespace tutti::test {

/// Random numbers of `shape` under `seed`.
at::Tensor random_tensor(at::IntArrayRef shape, std::uint64_t seed, at::ScalarType dtype = at::kFloat);

/// Overwrites all parameters with random numbers under `seed`.
void fill(torch::nn::Module& module, std::uint64_t seed);

/// Two layers; inputs of 6 features, outputs of 3.
struct MlpImpl : torch::nn::Module {
  explicit MlpImpl(std::uint64_t seed = 1, at::ScalarType dtype = at::kFloat);
  at::Tensor forward(const at::Tensor& x);
  torch::nn::Linear first{nullptr};
  torch::nn::Linear second{nullptr};
};
TORCH_MODULE(Mlp);

struct Batch {
  at::Tensor input;
  at::Tensor target;
};

/// Micro-batch number `index` of a job, on any rank.
Batch batch_of(std::int64_t index, at::ScalarType dtype = at::kFloat, std::int64_t samples = 4);

at::Tensor loss_of(const at::Tensor& output, const at::Tensor& target);

/// Copies of all gradients; undefined ones stay undefined.
std::vector<at::Tensor> gradients_of(const torch::nn::Module& module);

/// True if the norm of each tensor's difference is at most `tolerance` relative to the tensor's norm, and each gradient
/// is defined in both lists or in neither. Norms are compared, because rounding alone moves single elements by more.
bool close(const std::vector<at::Tensor>& actual, const std::vector<at::Tensor>& expected, double tolerance = 1e-6);

}  // namespace tutti::test
