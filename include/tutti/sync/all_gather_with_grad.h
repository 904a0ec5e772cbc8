#pragma once
// A differentiable all_gather, for losses over the outputs of all ranks, such as contrastive losses with the negatives
// of every rank. torch.distributed.nn.functional.all_gather and Lightning's all_gather(sync_grads=True) do the same.
//
// Do not scale the loss by the number of ranks. The losses of all ranks form one graph, as in one process. Backward
// gives each rank the gradient of their *sum* with respect to its own rows. Synchronization then takes the mean over
// ranks (or divides by the weights of the scopes), so parameters get the gradient of the mean of the ranks' losses.
// Write each rank's loss so that this mean is the loss of one process. Both usual forms satisfy this:
// - each rank takes the mean over its own rows against all rows (CLIP's local_loss);
// - each rank computes the whole loss over all rows.
#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <memory>

#include "tutti/comm/communicator.h"

namespace tutti {

/// A handle: copies share one duplicate of the communicator, so the all-reduces of backward cannot match collectives of
/// a reducer or of the program. Not thread safe.
class AllGatherWithGrad {
 public:
  /// Every rank must call it. Duplicates `communicator`.
  explicit AllGatherWithGrad(const Communicator& communicator);

  /// Returns the tensors of all ranks, concatenated by rank along dim 0, on the device of `tensor`. `tensor` must be
  /// dense, with the same dtype, shape and type of device on all ranks; a tensor without dimensions counts as one row.
  /// The result is part of the graph if `tensor` is: backward sums each rank's rows of the gradients of all ranks, on
  /// the host in a fixed order. Higher derivatives (create_graph) are supported; they are of all ranks' losses too.
  ///
  /// Every rank must call it, in the same order. If one rank runs backward through a result, all ranks must, as often
  /// and in the same order. Throws on all ranks; the object stays usable after the first two:
  /// - MismatchError, which names the ranks and their calls, if shapes or dtypes differ, if only some tensors require
  ///   gradients, or if backward passes run in different orders;
  /// - UsageError for a tensor that is not dense (MismatchError on the other ranks);
  /// - TimeoutError if a rank does not enter the call within the timeout; PeerError if a rank exits.
  at::Tensor operator()(const at::Tensor& tensor, const CallOptions& call = {}) const;

 private:
  Communicator communicator_;
  std::shared_ptr<std::int64_t> calls_ = std::make_shared<std::int64_t>(0);
};

}  // namespace tutti
