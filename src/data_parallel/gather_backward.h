#pragma once
// The autograd node of all replicas. Its inputs are gradients of the gathered output, its outputs the sums of the
// replicas' gradients.
//
// LibTorch's torch::nn::parallel does not serve: its Scatter and Gather exist only in the CUDA library, it copies the
// whole module for each forward, and the backward passes of CPU replicas would run on one thread.
#include <ATen/core/TensorBody.h>
#include <c10/core/Stream.h>

#include <cstddef>
#include <memory>
#include <vector>

#include "data_parallel/replica_group.h"

namespace tutti::data_parallel {

/// The data of a forward that its backward needs.
struct Pass {
  struct ReplicaPass {
    std::vector<at::Tensor> pieces;  ///< of the inputs; leaves
    std::vector<SharedParameter> parameters;
    at::Tensor output;
  };

  std::shared_ptr<ReplicaGroup> group;
  std::vector<at::Tensor> inputs;
  std::vector<ReplicaPass> replicas;
  /// The current streams of the forward on the replicas' accelerators. Autograd sets only that of the first device.
  std::vector<c10::Stream> streams{};
};

/// Attaches the history of `pass` to `gathered`, which must have none.
void attach_backward(at::Tensor& gathered, std::shared_ptr<Pass> pass);

}  // namespace tutti::data_parallel
