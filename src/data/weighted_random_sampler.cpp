#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/multinomial.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "data/option_limits.h"
#include "tutti/core/error.h"
#include "tutti/data/samplers.h"

namespace tutti {

WeightedRandomSampler::WeightedRandomSampler(std::vector<double> weights, std::int64_t num_samples,
                                             const WeightedRandomSamplerOptions& options)
    : weights_(std::move(weights)), num_samples_(num_samples), options_(options) {
  constexpr std::size_t most_weights = std::size_t{1} << 24;  // the limit of LibTorch's multinomial
  if (weights_.size() > most_weights) {
    throw UsageError("WeightedRandomSampler: " + std::to_string(weights_.size()) +
                     " weights; LibTorch draws from at most " + std::to_string(most_weights));
  }
  std::int64_t possible = 0;
  for (std::size_t i = 0; i < weights_.size(); ++i) {
    if (!std::isfinite(weights_[i]) || weights_[i] < 0) {
      throw UsageError("WeightedRandomSampler: the weight of sample " + std::to_string(i) + " is " +
                       std::to_string(weights_[i]) + ": it must be finite and not negative");
    }
    if (weights_[i] > 0) ++possible;
  }
  if (possible == 0) throw UsageError("WeightedRandomSampler: no sample has a positive weight");
  if (num_samples_ < 1) {
    throw UsageError("WeightedRandomSampler: num_samples is " + std::to_string(num_samples_) +
                     ": it must be at least 1");
  }
  require_at_most("WeightedRandomSampler: num_samples", num_samples_, most_samples_in_micro_batch);
  if (!options_.replacement && num_samples_ > possible) {
    throw UsageError("WeightedRandomSampler: " + std::to_string(num_samples_) +
                     " samples without replacement, but only " + std::to_string(possible) + " have a positive weight");
  }
}

std::vector<std::int64_t> WeightedRandomSampler::operator()(std::int64_t epoch) const {
  // The tensor is only read; from_blob has no const version.
  const at::Tensor weights =
      at::from_blob(const_cast<double*>(weights_.data()), {static_cast<std::int64_t>(weights_.size())}, at::kDouble);
  const auto seed = options_.seed + static_cast<std::uint64_t>(epoch);
  const at::Tensor drawn =
      at::multinomial(weights, num_samples_, options_.replacement, at::make_generator<at::CPUGeneratorImpl>(seed));
  const auto* first = drawn.const_data_ptr<std::int64_t>();
  return {first, first + num_samples_};
}

}  // namespace tutti
