#pragma once
// Sums of fp32: what gradients are. Vector instructions are chosen when the program runs; the bits are the same with
// all of them, as every element is added by itself.
#include <cstddef>
#include <span>

namespace tutti::comm {

/// result = (sum of versions / divisor) * factor, along the tree of combine.h. `result` may be one of the versions.
/// Memory need not be aligned beyond fp32.
void sum_floats(std::span<const std::byte* const> versions, std::byte* result, std::size_t elements, double divisor,
                double factor);

}  // namespace tutti::comm
