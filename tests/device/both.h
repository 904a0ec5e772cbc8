#pragma once
// One body on ranks whose tensors are in CPU memory and on ranks with a simulated device each.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>

#include <functional>
#include <vector>

#include "support/simulated_device/ranks.h"

namespace tutti::test {

using RankBody = std::function<std::vector<at::Tensor>(const Communicator&, at::Device)>;
using TensorsOfRanks = std::vector<std::vector<at::Tensor>>;

/// What each rank's `body` returns.
inline TensorsOfRanks results_on_cpu(int size, const RankBody& body) {
  TensorsOfRanks results(static_cast<std::size_t>(size));
  run_thread_ranks(size, [&](const Communicator& communicator) {
    results[static_cast<std::size_t>(communicator.rank())] = body(communicator, at::kCPU);
  });
  return results;
}

/// The same, copied to CPU memory. The backend "auto" sums by the simulated NCCL.
inline TensorsOfRanks results_on_devices(SimulatedRanks ranks, const RankBody& body) {
  ranks.c10d_backend = ranks.backend == "auto";
  TensorsOfRanks results(static_cast<std::size_t>(ranks.size));
  run_simulated_ranks(ranks, [&](const Communicator& communicator, at::Device device) {
    auto& of_rank = results[static_cast<std::size_t>(communicator.rank())];
    for (const at::Tensor& tensor : body(communicator, device)) of_rank.push_back(tensor.cpu());
    communicator.barrier().wait();
  });
  return results;
}

inline void expect_equal(const TensorsOfRanks& actual, const TensorsOfRanks& expected, double tolerance = 0) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t rank = 0; rank < actual.size(); ++rank) {
    ASSERT_EQ(actual[rank].size(), expected[rank].size());
    for (std::size_t i = 0; i < actual[rank].size(); ++i) {
      const bool equal = tolerance == 0 ? at::equal(actual[rank][i], expected[rank][i])
                                        : at::allclose(actual[rank][i].to(at::kDouble),
                                                       expected[rank][i].to(at::kDouble), tolerance, tolerance);
      EXPECT_TRUE(equal) << "rank " << rank << ", tensor " << i << '\n' << actual[rank][i] << expected[rank][i];
    }
  }
}

/// Copies of all parameters and buffers.
inline std::vector<at::Tensor> tensors_of(const torch::nn::Module& module) {
  std::vector<at::Tensor> tensors;
  for (const at::Tensor& parameter : module.parameters()) tensors.push_back(parameter.detach().clone());
  for (const at::Tensor& buffer : module.buffers()) tensors.push_back(buffer.detach().clone());
  return tensors;
}

}  // namespace tutti::test
