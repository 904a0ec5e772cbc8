#pragma once
// Combining versions of the same elements in an order that depends on their number alone.
#include <ATen/core/TensorBody.h>

#include <bit>
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
  Rescale rescale{};
};
Combination combination_of(ReduceOp op, int size);

/// Where the tree that combines `versions` (2 or more) divides: the largest power of two below their number. So the
/// versions of a node with a power of two of neighbouring ranks form a subtree, and a sum that is made node by node has
/// the bits of one that is made at once.
constexpr std::size_t left_of_tree(std::size_t versions) {
  return std::bit_floor(versions - 1);
}

/// Combines `versions` element by element along the tree of left_of_tree() and puts the result into `result`, which may
/// be one of the versions. fp16 and bf16 are combined and rescaled in fp32 and rounded once.
void combine(std::span<const std::byte* const> versions, std::byte* result, std::size_t elements, at::ScalarType dtype,
             const Combination& combination);

}  // namespace tutti::comm
