#include "sync/batch_statistics.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <tuple>
#include <utility>
#include <vector>

#include "device/devices.h"

namespace tutti::sync {

namespace {

/// The dimensions of `input` but the channels.
std::vector<std::int64_t> all_but_channels(const at::Tensor& input) {
  std::vector<std::int64_t> dimensions{0};
  for (std::int64_t i = 2; i < input.dim(); ++i) dimensions.push_back(i);
  return dimensions;
}

std::tuple<at::Tensor, at::Tensor> mean_and_variance(const at::Tensor& input) {
  if (input.is_cpu()) return at::batch_norm_update_stats(input, {}, {}, 0.0);
  // Not every device has the operator above.
  auto [variance, mean] = at::var_mean(input, all_but_channels(input), /*unbiased=*/false, /*keepdim=*/false);
  return {std::move(mean), std::move(variance)};
}

}  // namespace

BatchStatistics statistics_of(const at::Tensor& input) {
  const std::int64_t channels = input.size(1);
  const at::ScalarType wide = devices::widest_float(input.device());
  if (input.numel() == 0) {
    const at::Tensor zeros = at::zeros({channels}, input.options().dtype(wide));
    return {.count = 0, .mean = zeros, .variance = zeros};
  }
  const auto [mean, variance] = mean_and_variance(input);
  return {.count = input.numel() / channels, .mean = mean.to(wide), .variance = variance.to(wide)};
}

at::Tensor pack(const BatchStatistics& statistics) {
  const auto count = static_cast<double>(statistics.count);
  return at::cat({at::full({1}, count, statistics.mean.options()), statistics.mean, statistics.variance * count});
}

BatchStatistics combine(const at::Tensor& rows, std::int64_t count) {
  const std::int64_t channels = (rows.size(1) - 1) / 2;
  const at::Tensor counts = rows.narrow(1, 0, 1);
  const at::Tensor means = rows.narrow(1, 1, channels);
  const at::Tensor squares = rows.narrow(1, 1 + channels, channels);
  const auto divisor = static_cast<double>(count);
  if (count == 0) {
    const at::Tensor zeros = at::zeros({channels}, rows.options());
    return {.count = 0, .mean = zeros, .variance = zeros};
  }
  const at::Tensor mean = (means * counts).sum(0) / divisor;
  const at::Tensor variance = (squares + counts * (means - mean).square()).sum(0) / divisor;
  return {.count = count, .mean = mean, .variance = variance};
}

BatchStatistics combine(const at::Tensor& rows) {
  return combine(rows, static_cast<std::int64_t>(rows.narrow(1, 0, 1).sum().item<double>()));
}

}  // namespace tutti::sync
