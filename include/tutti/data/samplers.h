#pragma once
// Samplers: which samples an epoch reads, and in which order. A sampler does not depend on the rank: it must return the
// same samples on every rank, and each rank reads its shard of them (see Sharding).
#include <cstdint>
#include <functional>
#include <vector>

namespace tutti {

/// How the samples of an epoch are distributed over ranks.
enum class Sharding {
  /// Rank r takes samples r, r + world_size, ... as PyTorch's DistributedSampler does. If the samples do not fill all
  /// ranks, the first ones are repeated at the end; with drop_last, the last ones are left out.
  interleaved,
  /// The samples, in order, form batches of batch_size. Rank r takes batches r, r + world_size, ... as Accelerate's
  /// BatchSamplerShard does. The last world_size batches are filled up with the first samples; with drop_last, they are
  /// left out unless all of them are full.
  batches,
  /// The samples, in order, form micro-batches of batch_size. accumulation_steps * world_size micro-batches form a
  /// window, one for each optimizer step. Rank r takes the r-th block of accumulation_steps micro-batches of each
  /// window. If accumulation_steps * world_size stays the same, a step reads the same micro-batches in the same order
  /// on any number of ranks. A short last window is filled with the first samples up to the next multiple of world_size
  /// full micro-batches (with drop_last: cut to it), and each rank takes an equal block.
  blocks_by_window,
};

/// Returns the samples of an epoch: any callable that takes the epoch's number. It may repeat samples, leave some out,
/// and return a different number of samples in each epoch.
using Sampler = std::function<std::vector<std::int64_t>(std::int64_t epoch)>;

/// Returns the batches of an epoch, each a list of samples. Batches may differ in size.
using BatchSampler = std::function<std::vector<std::vector<std::int64_t>>(std::int64_t epoch)>;

/// Options of a WeightedRandomSampler.
struct WeightedRandomSamplerOptions {
  bool replacement = true;  ///< whether a sample may be drawn more than once in an epoch
  std::uint64_t seed = 0;   ///< the epoch is added to it
};

/// Draws num_samples samples in each epoch, sample i with a probability proportional to weights[i]. Draws the same
/// samples as torch.utils.data.WeightedRandomSampler with a generator seeded with seed + epoch.
class WeightedRandomSampler {
 public:
  /// Weights need not sum to 1. Throws UsageError if a weight is negative or not finite, if all weights are 0, or if
  /// num_samples without replacement exceeds the number of positive weights.
  WeightedRandomSampler(std::vector<double> weights, std::int64_t num_samples,
                        const WeightedRandomSamplerOptions& options = {});

  /// The samples of epoch `epoch`: num_samples indices into the weights.
  std::vector<std::int64_t> operator()(std::int64_t epoch) const;

 private:
  std::vector<double> weights_;
  std::int64_t num_samples_;
  WeightedRandomSamplerOptions options_;
};

}  // namespace tutti
