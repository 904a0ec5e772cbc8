#pragma once
// The arithmetic of reproducible training: the share of a rank, and the seeds of micro-batches. No I/O.
//
// A step has a fixed number of micro-batches, and rank r runs the r-th block of them. The random generator is seeded
// with the number of the micro-batch, so that its random numbers do not depend on the rank that runs it.
#include <cstdint>

#include "tutti/train/accelerator_options.h"

namespace tutti {

/// Number of micro-batches of each rank in a step. Throws UsageError unless it is equal on all ranks and, on several
/// ranks, a power of 2.
int micro_batches_of_rank(const ReproducibleOptions& options, int world_size);

/// The seed of micro-batch `micro_batch` of step `step`. `window` distinguishes the windows of several optimizers.
std::uint64_t micro_batch_seed(const ReproducibleOptions& options, std::int64_t window, std::int64_t step,
                               std::int64_t micro_batch);

}  // namespace tutti
