#pragma once
// Adding up versions of the same elements, always in the order in which they are given.
#include <ATen/core/TensorBody.h>

#include <cstddef>
#include <span>

#include "tutti/comm/communicator.h"

namespace tutti::comm {

/// What happens to a combination once: (value / divisor) * factor; 1 leaves it alone.
struct Rescale {
  double factor = 1;
  double divisor = 1;
};

/// What `op` means as a combination and a rescaling, for `size` ranks.
struct Combination {
  ReduceOp op = ReduceOp::sum;
  Rescale rescale;
};
Combination combination_of(ReduceOp op, int size);

/// Combines `versions` element by element, the first with the second, that with the third, ... and puts the result into
/// `result`, which may be one of the versions. fp16 and bf16 are combined and rescaled in fp32 and rounded once.
void combine(std::span<const std::byte* const> versions, std::byte* result, std::size_t elements, at::ScalarType dtype,
             const Combination& combination);

}  // namespace tutti::comm
