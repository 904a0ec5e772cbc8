#pragma once
// all_gather inside a graph: for losses over what all ranks computed, such as contrastive losses whose negatives come
// from every rank. torch.distributed.nn.functional.all_gather and Lightning's all_gather(sync_grads=True) do the same.
//
// How to scale the loss: not at all. All ranks' losses are one graph, as they would be in one process, and backward
// gives each rank the gradient of their *sum* with respect to its own rows. Synchronization then takes the mean over
// ranks (or divides by the scopes' weights) as always, so parameters get the gradient of the mean of the ranks' losses:
// write each rank's loss so that this mean is the loss of one process. Both usual forms are right as they are: each
// rank takes the mean over its own rows against all others (what CLIP does with local_loss), or each computes the whole
// loss over all rows. Do not multiply by the number of ranks.
#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <memory>

#include "tutti/comm/communicator.h"

namespace tutti {

/// A small value; copies share a channel of their own, so that backward's sums cannot meet those of the reducers or the
/// program's own collectives. One thread at a time.
class AllGatherWithGrad {
 public:
  /// Every rank must call it. Takes a channel of its own from `communicator`.
  explicit AllGatherWithGrad(const Communicator& communicator);

  /// Every rank's `tensor` (dense, of the same dtype and shape), one after the other by rank along dim 0; one without
  /// dimensions counts as one row. On the device of `tensor`: others than the CPU travel through the host's memory.
  /// The result is part of the graph where `tensor` is: backward sums each rank's rows of the gradients of all ranks,
  /// in a fixed order. Higher derivatives (create_graph) work, and are of all ranks' losses too.
  ///
  /// Every rank must call it, in the same order; and where one rank runs backward through a result, all must, as often
  /// and in the same order. Throws on all ranks, and can be used again: MismatchError, which says who calls what, for
  /// shapes or dtypes that differ, tensors of which only some require gradients, and backward passes in different
  /// orders; UsageError for a tensor that cannot travel (MismatchError on the other ranks). A rank that does not come
  /// is named at the deadline (TimeoutError); one that dies at once (PeerError).
  at::Tensor operator()(const at::Tensor& tensor, const CallOptions& call = {}) const;

 private:
  Communicator communicator_;
  std::shared_ptr<std::int64_t> calls_ = std::make_shared<std::int64_t>(0);
};

}  // namespace tutti
