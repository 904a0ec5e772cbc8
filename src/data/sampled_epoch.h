#pragma once
// The validated output of a sampler for one epoch.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "tutti/data/samplers.h"

namespace tutti {

/// Items in order: samples, or batches of samples.
struct SampledEpoch {
  std::vector<std::int64_t> samples{};  ///< the samples of all items
  std::vector<std::int64_t> ends{};     ///< the end of each batch in `samples`; empty if items are samples

  std::int64_t size() const { return static_cast<std::int64_t>(ends.empty() ? samples.size() : ends.size()); }
  /// Appends the samples of item `number`.
  void append(std::int64_t number, std::vector<std::size_t>& to) const;
  /// Differs for epochs with other samples, another order or other batches.
  std::uint32_t checksum() const;
};

/// Throw UsageError if the sampler returns nothing, an empty batch, or a sample outside 0 .. dataset_size - 1.
std::shared_ptr<const SampledEpoch> sample_epoch(const Sampler& sampler, std::int64_t epoch, std::int64_t dataset_size);
std::shared_ptr<const SampledEpoch> sample_epoch(const BatchSampler& sampler, std::int64_t epoch,
                                                 std::int64_t dataset_size);

}  // namespace tutti
