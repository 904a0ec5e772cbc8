#pragma once
// The work of all systems: one model, and the batches of a rank.
#include <ATen/core/TensorBody.h>

#include <vector>

#include "gpt/model.h"
#include "sync/options.h"
#include "sync/token_dataset.h"

namespace tutti::bench {

struct Batch {
  at::Tensor tokens;         ///< int64 [batch size, context]
  bool ends_window = false;  ///< an optimizer step follows
};

struct Epoch {
  TokenDataset dataset;        ///< of all ranks, interleaved in the order of DistributedSampler
  std::vector<Batch> batches;  ///< of this rank, as a loader over `dataset` delivers them
};

/// The learning rate of AdamW in all systems.
inline constexpr double learning_rate = 1e-3;

class Workload {
 public:
  Workload(const SyncOptions& options, int rank, int world_size);

  /// Returns a model with the same weights in every call and on every rank.
  gpt::Gpt make_model() const;

  /// The warm-up: full windows in which buckets are rebuilt and the automatic policy learns.
  const Epoch& warm_up() const { return warm_up_; }
  /// The timed epoch. Its last window is short if the batches do not fill it.
  const Epoch& timed() const { return timed_; }

  int steps() const { return steps_; }
  int batch_size() const { return batch_size_; }

 private:
  int steps_;
  int batch_size_;
  gpt::GptOptions model_;
  Epoch warm_up_;
  Epoch timed_;
};

/// Mean cross-entropy of predicting each token from itself and earlier tokens: as much work as predicting the next.
at::Tensor loss_of(gpt::Gpt& model, const at::Tensor& tokens);

}  // namespace tutti::bench
