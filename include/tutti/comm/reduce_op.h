#pragma once
// The reductions of a collective.

namespace tutti {

/// The element-wise reduction over the ranks' tensors.
enum class ReduceOp {
  sum,      ///< added in one fixed order, the same for every CPU backend
  mean,     ///< the sum divided by the number of ranks; floating dtypes only
  min,      ///< the smallest
  max,      ///< the largest
  product,  ///< the product
  bit_and,  ///< integer dtypes and bool
  bit_or,   ///< integer dtypes and bool
  bit_xor,  ///< integer dtypes and bool
};

}  // namespace tutti
