#pragma once
// Pairs of sentences in the file of nlp_peer.py.
#include <ATen/core/TensorBody.h>

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "tutti/data/to_device.h"

namespace tutti::bench {

struct Pairs {
  at::Tensor tokens;    ///< int64 [pairs, context]
  at::Tensor types;     ///< 0 in the first sentence, 1 in the second
  at::Tensor attended;  ///< 0 for padding, otherwise 1
  at::Tensor labels;    ///< int64 [pairs]

  Pairs narrow(std::int64_t first, std::int64_t count) const;
};

/// The overload for the Accelerator's loader.
Pairs to_device(Pairs pairs, const Placement& place);

class PairDataset {
 public:
  using BatchType = Pairs;

  explicit PairDataset(Pairs all) : all_(std::move(all)) {}

  Pairs get_batch(const std::vector<std::size_t>& indices);
  std::optional<std::size_t> size() const { return static_cast<std::size_t>(all_.labels.size(0)); }

 private:
  Pairs all_;
};

struct PairBatch {
  Pairs pairs;
  bool ends_window = false;  ///< an optimizer step follows
};

struct PairEpoch {
  PairDataset dataset;             ///< of all ranks, interleaved in the order of DistributedSampler
  std::vector<PairBatch> batches;  ///< of this rank
};

struct PairEpochs {
  PairEpoch warm_up;
  PairEpoch timed;
};

/// Returns the batches of rank `rank`. `steps`: batches in an optimizer step. Throws CheckpointError if the file is
/// incomplete.
PairEpochs read_pairs(const std::filesystem::path& file, int rank, int world_size, int batch_size, int steps);

}  // namespace tutti::bench
