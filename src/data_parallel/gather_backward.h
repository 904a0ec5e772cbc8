#pragma once
// The node of the autograd graph that stands for all replicas: gradients of the gathered output in, sums of the
// replicas' gradients out.
//
// LibTorch's own torch::nn::parallel cannot do this: its Scatter and Gather exist in the CUDA library only, it copies
// the whole module for each forward, and the backward pass of CPU replicas would run on one thread.
#include <ATen/core/TensorBody.h>

#include <cstddef>
#include <memory>
#include <vector>

#include "data_parallel/replica_group.h"

namespace tutti::data_parallel {

/// What one forward leaves for its backward.
struct Pass {
  struct ReplicaPass {
    std::vector<at::Tensor> pieces;  ///< of the inputs; leaves
    std::vector<SharedParameter> parameters;
    at::Tensor output;
  };

  std::shared_ptr<ReplicaGroup> group;
  std::vector<at::Tensor> inputs;
  std::vector<ReplicaPass> replicas;
};

/// `gathered` (no history yet) becomes the result of `pass`.
void attach_backward(at::Tensor& gathered, std::shared_ptr<Pass> pass);

}  // namespace tutti::data_parallel
