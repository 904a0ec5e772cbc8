#pragma once
// The reduction of contributions in an order that depends on their number alone (pairwise summation, Higham).
#include <ATen/core/TensorBody.h>

#include <bit>
#include <cstddef>
#include <span>

#include "tutti/comm/reduce_op.h"

namespace tutti::comm {

/// An operation on pairs, and the scaling of its result: (value / divisor) * factor. A divisor or factor of 1 is
/// skipped.
struct Reduction {
  ReduceOp op = ReduceOp::sum;
  double factor = 1;
  double divisor = 1;
};
/// The reduction of `op` over `size` ranks: a mean divides by `size`.
Reduction make_reduction(ReduceOp op, int size);

/// The dtype in which values of `dtype` are reduced and scaled: fp32 for fp16 and bf16, which are rounded once, at the
/// end.
at::ScalarType dtype_of_sums(at::ScalarType dtype);

/// out = op(a, b), element by element. `out` may be `a` or `b`. Does not divide a mean.
void reduce_pair(at::Tensor out, const at::Tensor& a, const at::Tensor& b, ReduceOp op);

/// The size of the left subtree of `contributions` (2 or more): the largest power of two below their number. The
/// contributions of a node with a power of two of consecutive ranks therefore form a subtree. A sum that is computed
/// node by node has the same bits as one that is computed at once.
constexpr std::size_t split_point(std::size_t contributions) {
  return std::bit_floor(contributions - 1);
}

/// Reduces `contributions` element by element along the tree of split_point() and writes to `result`, which may be one
/// of the contributions. Reduces and scales in dtype_of_sums().
void reduce_tree(std::span<const std::byte* const> contributions, std::byte* result, std::size_t elements,
                 at::ScalarType dtype, const Reduction& reduction);

}  // namespace tutti::comm
