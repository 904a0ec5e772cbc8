#pragma once
// The reduction of fp32 sums, the type of gradients. Vector instructions are chosen at run time. The result has equal
// bits with all of them, because each element is added independently.
#include <cstddef>
#include <span>

namespace tutti::comm {

/// result = (sum of contributions / divisor) * factor, summed along the reduction tree of reduce_tree.h. `result` may
/// be one of the contributions. Memory must be aligned for fp32 only.
void reduce_float32(std::span<const std::byte* const> contributions, std::byte* result, std::size_t elements,
                    double divisor, double factor);

}  // namespace tutti::comm
