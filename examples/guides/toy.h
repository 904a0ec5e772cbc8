#pragma once
// The data and model of the guides' programs: points, a surface over them, and a small network that learns it.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <torch/data/example.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace toy {

/// Equal points in every process, from a separate generator.
class Points {
 public:
  static constexpr std::int64_t dimensions = 8;

  explicit Points(std::int64_t size, std::uint64_t seed = 0)
      : inputs_(at::randn({size, dimensions}, at::make_generator<at::CPUGeneratorImpl>(seed))),
        targets_(inputs_.pow(2).sum(1, true).sqrt()) {}

  std::size_t size() const { return static_cast<std::size_t>(inputs_.size(0)); }
  torch::data::Example<> get_batch(const std::vector<std::size_t>& chosen) const {
    const auto rows = at::tensor(std::vector<std::int64_t>(chosen.begin(), chosen.end()));
    return {inputs_.index_select(0, rows), targets_.index_select(0, rows)};
  }

 private:
  at::Tensor inputs_;
  at::Tensor targets_;
};

/// Equal initial weights in every process.
inline torch::nn::Sequential make_net(std::uint64_t seed = 1) {
  torch::manual_seed(seed);
  return torch::nn::Sequential(torch::nn::Linear(Points::dimensions, 32), torch::nn::GELU(), torch::nn::Linear(32, 1));
}

}  // namespace toy
