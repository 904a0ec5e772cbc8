#pragma once
// Training whose bits do not depend on the number of ranks. Pure.
//
// A step is a fixed number of micro-batches. Rank r runs the r-th block of them; sums are taken in one order over all
// micro-batches, whoever ran them (see ReducerOptions::reproducible), and the random generator is seeded by the
// micro-batch's number. So 1 rank with 8 micro-batches, 2 with 4, 4 with 2 and 8 with 1 end with the same parameter
// bytes. Running statistics of BatchNorm are outside of this.
#include <cstdint>

namespace tutti {

/// The promise, and what it depends on: runs with equal options have equal bits.
struct ReproducibleOptions {
  /// Micro-batches in an optimizer step, of all ranks together; at least 1.
  int micro_batches = 1;
  /// Decides dropout and the like: every micro-batch derives a seed of its own from it.
  std::uint64_t seed = 0;
  /// Compute threads of a rank. The sums that LibTorch takes inside an operation depend on their number.
  int threads = 1;
};

/// Micro-batches of each rank in a step. Throws UsageError where they cannot be dealt out: all ranks must have as many,
/// and on several ranks that must be 1, 2, 4, 8, ...
int micro_batches_of_rank(const ReproducibleOptions& options, int world_size);

/// The seed of micro-batch `micro_batch` of step `step`; `window` tells windows of several optimizers apart.
std::uint64_t micro_batch_seed(const ReproducibleOptions& options, std::int64_t window, std::int64_t step,
                               std::int64_t micro_batch);

}  // namespace tutti
