#include "support/training.h"

#include <ATen/CPUGeneratorImpl.h>
#include <torch/nn/functional/loss.h>

namespace tutti::test {

at::Tensor random_tensor(at::IntArrayRef shape, std::uint64_t seed, at::ScalarType dtype) {
  return at::randn(shape, at::detail::createCPUGenerator(seed), at::TensorOptions(dtype));
}

void fill(torch::nn::Module& module, std::uint64_t seed) {
  const at::NoGradGuard no_grad;
  for (at::Tensor& parameter : module.parameters()) {
    parameter.copy_(random_tensor(parameter.sizes(), seed++, parameter.scalar_type()) * 0.3);
  }
}

MlpImpl::MlpImpl(std::uint64_t seed, at::ScalarType dtype)
    : first(register_module("first", torch::nn::Linear(6, 8))),
      second(register_module("second", torch::nn::Linear(8, 3))) {
  to(dtype);
  fill(*this, seed);
}

at::Tensor MlpImpl::forward(const at::Tensor& x) {
  return second(at::tanh(first(x)));
}

Batch batch_of(std::int64_t index, at::ScalarType dtype, std::int64_t samples) {
  const auto seed = static_cast<std::uint64_t>(1000 + 2 * index);
  return {.input = random_tensor({samples, 6}, seed, dtype), .target = random_tensor({samples, 3}, seed + 1, dtype)};
}

at::Tensor loss_of(const at::Tensor& output, const at::Tensor& target) {
  return torch::nn::functional::mse_loss(output, target);
}

std::vector<at::Tensor> gradients_of(const torch::nn::Module& module) {
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : module.parameters()) {
    gradients.push_back(parameter.grad().defined() ? parameter.grad().clone() : at::Tensor());
  }
  return gradients;
}

bool close(const std::vector<at::Tensor>& actual, const std::vector<at::Tensor>& expected, double tolerance) {
  if (actual.size() != expected.size()) return false;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    if (actual[i].defined() != expected[i].defined()) return false;
    if (!actual[i].defined()) continue;
    const double size = expected[i].detach().to(at::kDouble).norm().item<double>();
    const double difference =
        (actual[i].detach().to(at::kDouble) - expected[i].detach().to(at::kDouble)).norm().item<double>();
    if (!(difference <= tolerance * std::max(size, 1e-12))) return false;
  }
  return true;
}

}  // namespace tutti::test
