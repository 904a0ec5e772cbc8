#pragma once
// What a sampler gave for one epoch, checked.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "tutti/data/samplers.h"

namespace tutti {

/// Items in order: samples, or batches of samples.
struct SampledEpoch {
  std::vector<std::int64_t> samples{};  ///< of all items
  std::vector<std::int64_t> ends{};     ///< where each batch ends in `samples`; empty where items are samples
  bool of_batches = false;

  std::int64_t size() const { return static_cast<std::int64_t>(of_batches ? ends.size() : samples.size()); }
  /// Appends the samples of item `number`.
  void append(std::int64_t number, std::vector<std::size_t>& to) const;
  /// Tells epochs of other samples, order or batches apart.
  std::uint32_t checksum() const;
};

/// Throw UsageError where nothing is given, an empty batch, or a sample that a dataset of `dataset_size` has not.
std::shared_ptr<const SampledEpoch> sample_epoch(const Sampler& sampler, std::int64_t epoch, std::int64_t dataset_size);
std::shared_ptr<const SampledEpoch> sample_epoch(const BatchSampler& sampler, std::int64_t epoch,
                                                 std::int64_t dataset_size);

}  // namespace tutti
