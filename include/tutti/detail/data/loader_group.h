#pragma once
// Where a loader stands among its kin on other ranks and in its own process.
#include <cstdint>
#include <memory>

#include "tutti/detail/data/loader_agreement.h"
#include "tutti/detail/data/loader_position.h"

namespace tutti {

struct LoaderGroup {
  int rank = 0;
  int world_size = 1;
  /// Matters for Sharding::blocks_by_window only.
  std::int64_t accumulation_steps = 1;
  /// Loops are entered here while they run.
  std::shared_ptr<LoaderStack> stack = std::make_shared<LoaderStack>();
  /// Lets ranks compare what their samplers give, and agree on where streams end.
  LoaderAgreement agreement{};
};

/// The part of a batch that each rank reads with split_batches. Throws UsageError where it cannot be split.
std::int64_t split_over(std::int64_t batch_size, int world_size);

}  // namespace tutti
