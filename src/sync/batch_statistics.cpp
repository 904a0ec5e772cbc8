#include "sync/batch_statistics.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

namespace tutti::sync {

BatchStatistics statistics_of(const at::Tensor& input) {
  const std::int64_t channels = input.size(1);
  if (input.numel() == 0) return {0, at::zeros({channels}, at::kDouble), at::zeros({channels}, at::kDouble)};
  const auto [mean, variance] = at::batch_norm_update_stats(input, {}, {}, 0.0);
  return {input.numel() / channels, mean.to(at::kDouble), variance.to(at::kDouble)};
}

at::Tensor pack(const BatchStatistics& statistics) {
  const auto count = static_cast<double>(statistics.count);
  return at::cat({at::full({1}, count, at::kDouble), statistics.mean, statistics.variance * count});
}

BatchStatistics combine(const at::Tensor& rows) {
  const std::int64_t channels = (rows.size(1) - 1) / 2;
  const at::Tensor counts = rows.narrow(1, 0, 1);
  const at::Tensor means = rows.narrow(1, 1, channels);
  const at::Tensor squares = rows.narrow(1, 1 + channels, channels);
  const auto count = counts.sum().item<double>();
  if (count == 0) return {0, at::zeros({channels}, at::kDouble), at::zeros({channels}, at::kDouble)};
  const at::Tensor mean = (means * counts).sum(0) / count;
  const at::Tensor variance = (squares + counts * (means - mean).square()).sum(0) / count;
  return {static_cast<std::int64_t>(count), mean, variance};
}

}  // namespace tutti::sync
