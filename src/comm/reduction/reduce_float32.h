#pragma once
// Sums of fp32: what gradients are. Vector instructions are chosen when the program runs; the bits are the same with
// all of them, as every element is added by itself.
#include <cstddef>
#include <span>

namespace tutti::comm {

/// result = (sum of contributions / divisor) * factor, along the tree of combine.h. `result` may be one of the
/// versions. Memory need not be aligned beyond fp32.
void reduce_float32(std::span<const std::byte* const> contributions, std::byte* result, std::size_t elements,
                    double divisor, double factor);

}  // namespace tutti::comm
