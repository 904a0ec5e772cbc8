#pragma once
// The loaders of other ranks and of this process that a loader belongs to.
#include <cstdint>
#include <memory>

#include "tutti/detail/data/loader_agreement.h"
#include "tutti/detail/data/loader_position.h"

namespace tutti {

struct LoaderGroup {
  int rank = 0;
  int world_size = 1;
  /// Used by Sharding::blocks_by_window only.
  std::int64_t accumulation_steps = 1;
  /// Number of the loader, equal on all ranks; -1 for a loader that ranks do not read together.
  std::int64_t loader = -1;
  /// The running loops of this process.
  std::shared_ptr<LoaderStack> stack = std::make_shared<LoaderStack>();
  /// Used by ranks to compare their samplers' samples and to agree on where streams end.
  LoaderAgreement agreement{};
};

/// The position of the first batch of a loop that begins now. `epochs_differ`: whether an epoch has other batches than
/// the epoch before.
LoopStart loop_start(const LoaderGroup& group, const LoaderCursor& cursor, bool epochs_differ);

/// The size of a rank's part of a batch with split_batches. Throws UsageError if `batch_size` is not divisible.
std::int64_t split_over(std::int64_t batch_size, int world_size);

}  // namespace tutti
