#pragma once
// Encodes fp32 numbers as 8-bit integers and one fp32 scale for each block of 256. No I/O, no LibTorch.
//
// A number is rounded to a multiple of its block's largest magnitude / 127. A block with a NaN or an infinity decodes
// to NaN. Memory needs no alignment.
#include <cstddef>
#include <span>

namespace tutti::comm {

enum class Rounding {
  nearest,
  /// Up or down at random, so that the expected result is the number: QSGD (Alistarh et al., NeurIPS 2017, 1610.02132).
  /// The random number is a hash of the number and its position: the same numbers always give the same bytes.
  stochastic,
};

/// The encoded size of `elements` numbers, in bytes.
std::size_t int8_bytes(std::size_t elements);

/// `bytes` must have int8_bytes(values.size()) bytes.
void encode_int8(std::span<const float> values, std::span<std::byte> bytes, Rounding rounding);
void decode_int8(std::span<const std::byte> bytes, std::span<float> values);

}  // namespace tutti::comm
