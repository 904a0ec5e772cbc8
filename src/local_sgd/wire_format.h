#pragma once
// Encodes fp32 numbers as bytes of a lossy wire format: bf16 or int8. No I/O. A NaN or an infinity never becomes a
// finite number: under int8 its whole block decodes to NaN (int8_blocks.h).
//
// Error feedback: Seide et al., "1-Bit Stochastic Gradient Descent" (Interspeech 2014); Karimireddy et al., "Error
// Feedback Fixes SignSGD" (ICML 2019, 1901.09847).
#include <cstddef>
#include <cstdint>
#include <span>

#include "tutti/local_sgd/local_sgd_algorithm_options.h"

namespace tutti::local_sgd {

/// The encoded size of `elements` numbers in bytes.
std::int64_t encoded_bytes(WireFormat format, std::int64_t elements);

/// `bytes` must have encoded_bytes() bytes.
void encode(WireFormat format, std::span<const float> values, std::span<std::byte> bytes);
void decode(WireFormat format, std::span<const std::byte> bytes, std::span<float> values);

/// Encodes `values` plus `lost`, and sets `lost` to the rounding error of that sum.
void encode_with_feedback(WireFormat format, std::span<const float> values, std::span<float> lost,
                          std::span<std::byte> bytes);

}  // namespace tutti::local_sgd
