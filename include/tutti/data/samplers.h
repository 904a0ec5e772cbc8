#pragma once
// Samplers: which samples an epoch reads, and in which order. They know nothing of ranks: every rank asks for the same
// epoch, must get the same answer, and reads its part of it (see Sharding).
#include <cstdint>
#include <functional>
#include <vector>

namespace tutti {

/// The samples of an epoch: any object that can be called with the epoch's number. It may repeat samples, leave some
/// out, and give another number of them in each epoch.
using Sampler = std::function<std::vector<std::int64_t>(std::int64_t epoch)>;

/// The batches of an epoch, each the list of its samples. They may differ in size.
using BatchSampler = std::function<std::vector<std::vector<std::int64_t>>(std::int64_t epoch)>;

/// How a WeightedRandomSampler draws.
struct WeightedRandomSamplerOptions {
  bool replacement = true;  ///< whether a sample may be drawn more than once in an epoch
  std::uint64_t seed = 0;   ///< the epoch is added to it
};

/// Draws num_samples samples in each epoch, sample i with a probability proportional to weights[i]: what
/// torch.utils.data.WeightedRandomSampler draws under a generator with the seed seed + epoch.
class WeightedRandomSampler {
 public:
  /// Weights need not add up to 1. Throws UsageError for weights that are negative, not finite or all 0, and where more
  /// samples are asked for than can be drawn without replacement.
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
