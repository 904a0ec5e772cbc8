#include "comm/reduction/int8_blocks.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

namespace tutti::comm {
namespace {

constexpr std::size_t block_elements = 256;
constexpr int largest_integer = 127;

std::size_t blocks_of(std::size_t elements) {
  return (elements + block_elements - 1) / block_elements;
}

// The loops are inlined into one function for each instruction set and vectorized there.
[[gnu::always_inline]] inline float scale_of(const float* values, std::size_t count) {
  constexpr std::uint32_t magnitude = 0x7fffffff;
  std::uint32_t largest = 0;  // magnitudes compare as integers
  for (std::size_t i = 0; i < count; ++i) {
    largest = std::max(largest, std::bit_cast<std::uint32_t>(values[i]) & magnitude);
  }
  const float as_float = std::bit_cast<float>(largest);
  if (!std::isfinite(as_float)) return std::numeric_limits<float>::quiet_NaN();
  constexpr float limit = std::numeric_limits<float>::max() / 127.0001F;  // 127 times the scale is finite
  return std::min(as_float / static_cast<float>(largest_integer), limit);
}

/// A multiple of 2^-16 in [0, 1). The hash is Chris Wellons' "lowbias32".
[[gnu::always_inline]] inline float random_of(float value, std::uint32_t position) {
  std::uint32_t hash = std::bit_cast<std::uint32_t>(value) ^ (position * 0x9e3779b9U);
  hash = (hash ^ (hash >> 16)) * 0x7feb352dU;
  hash = (hash ^ (hash >> 15)) * 0x846ca68bU;
  return static_cast<float>(static_cast<std::int32_t>(hash >> 16)) * 0x1p-16F;
}

/// Returns the scale of the block, which begins at element `begin` of its message.
template <Rounding rounding>
[[gnu::always_inline]] inline float encode_block(const float* values, std::size_t count, std::size_t begin,
                                                 std::int8_t* integers) {
  // Makes quotients positive, so that the conversion to an integer, which truncates, rounds down. All sums are
  // multiples of 2^-16, so a quotient that is an integer keeps its value.
  constexpr int shift = 128;
  const float scale = scale_of(values, count);
  if (!(scale > 0)) {
    std::memset(integers, 0, count);
    return scale;
  }
  for (std::size_t i = 0; i < count; ++i) {
    const float up = rounding == Rounding::nearest ? 0.5F : random_of(values[i], static_cast<std::uint32_t>(begin + i));
    // The inverse of the scale may be infinite, so divide.
    const auto shifted = static_cast<std::int32_t>(values[i] / scale + shift + up);
    // Quotients exceed 127 where the scale is subnormal.
    integers[i] =
        static_cast<std::int8_t>(std::clamp(shifted, shift - largest_integer, shift + largest_integer) - shift);
  }
  return scale;
}

[[gnu::always_inline]] inline void decode_block(const std::int8_t* integers, std::size_t count, float scale,
                                                float* values) {
  for (std::size_t i = 0; i < count; ++i) values[i] = scale * static_cast<float>(integers[i]);
}

using Encode = float (*)(const float* values, std::size_t count, std::size_t begin, std::int8_t* integers);
using Decode = void (*)(const std::int8_t* integers, std::size_t count, float scale, float* values);

struct BlockCodec {
  Encode encode_nearest;
  Encode encode_stochastic;
  Decode decode;
};

#if defined(__x86_64__)
template <Rounding rounding>
[[gnu::target("avx2")]] float encode_avx2(const float* values, std::size_t count, std::size_t begin,
                                          std::int8_t* integers) {
  return encode_block<rounding>(values, count, begin, integers);
}
[[gnu::target("avx2")]] void decode_avx2(const std::int8_t* integers, std::size_t count, float scale, float* values) {
  decode_block(integers, count, scale, values);
}
#endif
template <Rounding rounding>
float encode_any(const float* values, std::size_t count, std::size_t begin, std::int8_t* integers) {
  return encode_block<rounding>(values, count, begin, integers);
}
void decode_any(const std::int8_t* integers, std::size_t count, float scale, float* values) {
  decode_block(integers, count, scale, values);
}

BlockCodec fastest_block_codec() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) {
    return {encode_avx2<Rounding::nearest>, encode_avx2<Rounding::stochastic>, decode_avx2};
  }
#endif
  return {encode_any<Rounding::nearest>, encode_any<Rounding::stochastic>, decode_any};
}

const BlockCodec& block_codec() {
  static const BlockCodec fastest = fastest_block_codec();
  return fastest;
}

}  // namespace

std::size_t int8_bytes(std::size_t elements) {
  return elements + blocks_of(elements) * sizeof(float);
}

// Layout: all scales, then all integers.
void encode_int8(std::span<const float> values, std::span<std::byte> bytes, Rounding rounding) {
  const Encode encode = rounding == Rounding::nearest ? block_codec().encode_nearest : block_codec().encode_stochastic;
  std::byte* scales = bytes.data();
  auto* const integers = reinterpret_cast<std::int8_t*>(scales + blocks_of(values.size()) * sizeof(float));
  for (std::size_t begin = 0; begin < values.size(); begin += block_elements) {
    const auto block = values.subspan(begin, std::min(block_elements, values.size() - begin));
    const float scale = encode(block.data(), block.size(), begin, integers + begin);
    std::memcpy(scales, &scale, sizeof(scale));
    scales += sizeof(scale);
  }
}

void decode_int8(std::span<const std::byte> bytes, std::span<float> values) {
  const std::byte* scales = bytes.data();
  const auto* const integers = reinterpret_cast<const std::int8_t*>(scales + blocks_of(values.size()) * sizeof(float));
  for (std::size_t begin = 0; begin < values.size(); begin += block_elements) {
    const auto block = values.subspan(begin, std::min(block_elements, values.size() - begin));
    float scale = 0;
    std::memcpy(&scale, scales, sizeof(scale));
    block_codec().decode(integers + begin, block.size(), scale, block.data());
    scales += sizeof(scale);
  }
}

}  // namespace tutti::comm
