#pragma once
// Training whose bits do not depend on the number of ranks. No I/O.
//
// A step has a fixed number of micro-batches, and rank r runs the r-th block of them. Gradients are summed in one order
// over all micro-batches, on any number of ranks (see ReducerOptions::reproducible). The random generator is seeded
// with the number of the micro-batch. So 1 rank with 8 micro-batches, 2 with 4, 4 with 2 and 8 with 1 end with the same
// parameter bytes. Running statistics of BatchNorm are not covered.
#include <cstdint>

namespace tutti {

/// Options of reproducible training. Runs with equal options have equal bits.
struct ReproducibleOptions {
  /// Micro-batches in an optimizer step, of all ranks together; at least 1.
  int micro_batches = 1;
  /// Seed of dropout and other random operations. Each micro-batch derives its own seed from it.
  std::uint64_t seed = 0;
  /// Number of compute threads of a rank. The order of LibTorch's sums inside an operation depends on it.
  int threads = 1;
};

/// Number of micro-batches of each rank in a step. Throws UsageError unless it is equal on all ranks and, on several
/// ranks, a power of 2.
int micro_batches_of_rank(const ReproducibleOptions& options, int world_size);

/// The seed of micro-batch `micro_batch` of step `step`. `window` distinguishes the windows of several optimizers.
std::uint64_t micro_batch_seed(const ReproducibleOptions& options, std::int64_t window, std::int64_t step,
                               std::int64_t micro_batch);

}  // namespace tutti
