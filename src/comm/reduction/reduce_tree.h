#pragma once
// Combining versions of the same elements in an order that depends on their number alone.
#include <ATen/core/TensorBody.h>

#include <bit>
#include <cstddef>
#include <span>

#include "tutti/comm/communicator.h"

namespace tutti::comm {

/// What happens to a combination once: (value / divisor) * factor; 1 leaves it alone.
struct Scale {
  double factor = 1;
  double divisor = 1;
};

/// What `op` means as a combination and a rescaling, for `size` ranks.
struct Reduction {
  ReduceOp op = ReduceOp::sum;
  Scale scale{};
};
Reduction make_reduction(ReduceOp op, int size);

/// Where the tree that combines `contributions` (2 or more) divides: the largest power of two below their number. So
/// the versions of a node with a power of two of neighbouring ranks form a subtree, and a sum that is made node by node
/// has the bits of one that is made at once.
constexpr std::size_t split_point(std::size_t contributions) {
  return std::bit_floor(contributions - 1);
}

/// Combines `contributions` element by element along the tree of split_point() and puts the result into `result`, which
/// may be one of the versions. fp16 and bf16 are combined and rescaled in fp32 and rounded once.
void reduce_tree(std::span<const std::byte* const> contributions, std::byte* result, std::size_t elements,
                 at::ScalarType dtype, const Reduction& reduction);

}  // namespace tutti::comm
