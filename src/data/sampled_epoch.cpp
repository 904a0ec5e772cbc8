#include "data/sampled_epoch.h"

#include <span>
#include <string>
#include <utility>

#include "tutti/core/error.h"
#include "tutti/detail/core/crc32c.h"

namespace tutti {

namespace {

void check(const std::vector<std::int64_t>& samples, std::int64_t epoch, std::int64_t dataset_size) {
  for (const std::int64_t sample : samples) {
    if (sample >= 0 && sample < dataset_size) continue;
    throw UsageError("the sampler returned sample " + std::to_string(sample) + " in epoch " + std::to_string(epoch) +
                     ", but the dataset has samples 0 .. " + std::to_string(dataset_size - 1));
  }
}

}  // namespace

void SampledEpoch::append(std::int64_t number, std::vector<std::size_t>& to) const {
  const auto item = static_cast<std::size_t>(number);
  if (ends.empty()) {
    to.push_back(static_cast<std::size_t>(samples[item]));
    return;
  }
  to.insert(to.end(), samples.begin() + (item == 0 ? 0 : ends[item - 1]), samples.begin() + ends[item]);
}

std::uint32_t SampledEpoch::checksum() const {
  return crc32c(std::as_bytes(std::span(ends)), crc32c(std::as_bytes(std::span(samples))));
}

std::shared_ptr<const SampledEpoch> sample_epoch(const Sampler& sampler, std::int64_t epoch,
                                                 std::int64_t dataset_size) {
  SampledEpoch sampled{.samples = sampler(epoch)};
  if (sampled.samples.empty()) throw UsageError("the sampler returned no samples for epoch " + std::to_string(epoch));
  check(sampled.samples, epoch, dataset_size);
  return std::make_shared<const SampledEpoch>(std::move(sampled));
}

std::shared_ptr<const SampledEpoch> sample_epoch(const BatchSampler& sampler, std::int64_t epoch,
                                                 std::int64_t dataset_size) {
  SampledEpoch sampled;
  for (const std::vector<std::int64_t>& batch : sampler(epoch)) {
    if (batch.empty()) throw UsageError("the batch sampler returned an empty batch in epoch " + std::to_string(epoch));
    check(batch, epoch, dataset_size);
    sampled.samples.insert(sampled.samples.end(), batch.begin(), batch.end());
    sampled.ends.push_back(static_cast<std::int64_t>(sampled.samples.size()));
  }
  if (sampled.ends.empty())
    throw UsageError("the batch sampler returned no batches for epoch " + std::to_string(epoch));
  return std::make_shared<const SampledEpoch>(std::move(sampled));
}

}  // namespace tutti
