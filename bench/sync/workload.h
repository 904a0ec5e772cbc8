#pragma once
// What every system trains: one model, and the batches of a rank.
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
  TokenDataset dataset;        ///< of all ranks, interleaved as DistributedSampler deals
  std::vector<Batch> batches;  ///< of this rank: what a loader over `dataset` delivers
};

/// Of AdamW, in every system.
inline constexpr double learning_rate = 1e-3;

class Workload {
 public:
  Workload(const SyncOptions& options, int rank, int world_size);

  /// A model with the same weights every time, on every rank.
  gpt::Gpt make_model() const;

  /// Full windows: enough for buckets to be rebuilt and for the automatic policy to learn.
  const Epoch& warm_up() const { return warm_up_; }
  /// What is timed. Its last window is short where the batches do not fill it.
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

/// Mean cross-entropy of predicting each token from itself and those before it: as much work as predicting the next.
at::Tensor loss_of(gpt::Gpt& model, const at::Tensor& tokens);

}  // namespace tutti::bench
