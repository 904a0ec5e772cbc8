#pragma once
// Mean and variance of each channel, over the batch of one rank and over the batches of all ranks.
//
// Chan, Golub, LeVeque, "Updating Formulae and a Pairwise Algorithm for Computing Sample Variances", 1979: combines
// sums of squares around each rank's mean, because sums of squares around zero cancel.
#include <ATen/core/TensorBody.h>

#include <cstdint>

namespace tutti::sync {

/// Statistics of `count` values in each channel. Tensors are [channels], of the widest type of the input's device:
/// double, except where the device has none.
struct BatchStatistics {
  std::int64_t count = 0;
  at::Tensor mean{};
  at::Tensor variance{};  // biased; zeros for an empty batch
};

/// Statistics of `input` [N, channels, ...], which may be empty; float or double.
BatchStatistics statistics_of(const at::Tensor& input);

/// One row of a message: count, means, sums of squares around the means.
at::Tensor pack(const BatchStatistics& statistics);
/// Statistics of the batches of all ranks from their rows, [ranks, 1 + 2 * channels]. `count` is the sum of their
/// counts. The order of the sums is fixed, so equal rows give equal bits on all ranks.
BatchStatistics combine(const at::Tensor& rows, std::int64_t count);
/// The same for rows in CPU memory, whose counts the host can read.
BatchStatistics combine(const at::Tensor& rows);

}  // namespace tutti::sync
