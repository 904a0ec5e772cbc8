#pragma once
// Mean and variance of each channel: of one rank's batch, and of all ranks' together.
//
// Chan, Golub, LeVeque, "Updating Formulae and a Pairwise Algorithm for Computing Sample Variances", 1979: sums of
// squares around each rank's own mean are combined, because sums of squares around zero cancel.
#include <ATen/core/TensorBody.h>

#include <cstdint>

namespace tutti::sync {

/// Of `count` values in each channel. Tensors are double [channels].
struct BatchStatistics {
  std::int64_t count = 0;
  at::Tensor mean{};
  at::Tensor variance{};  // biased; zeros where there is nothing
};

/// Of `input` [N, channels, ...], which may be empty; in float or double.
BatchStatistics statistics_of(const at::Tensor& input);

/// One row of a message: count, means, sums of squares around them.
at::Tensor pack(const BatchStatistics& statistics);
/// Of the rows of all ranks: double [ranks, 1 + 2 * channels]. The order of the sums is fixed: the same rows give the
/// same bits everywhere.
BatchStatistics combine(const at::Tensor& rows);

}  // namespace tutti::sync
