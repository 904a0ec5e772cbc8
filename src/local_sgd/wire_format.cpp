#include "local_sgd/wire_format.h"

#include <c10/util/BFloat16.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

namespace tutti::local_sgd {
namespace {

constexpr float largest = 127;

std::int64_t blocks_of(std::int64_t elements) {
  return (elements + block_elements - 1) / block_elements;
}

// Unaligned access is allowed.
template <typename T>
void store(std::byte* to, T value) {
  std::memcpy(to, &value, sizeof(value));
}
template <typename T>
T load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

void encode_bf16(std::span<const float> values, std::byte* bytes) {
  for (std::size_t i = 0; i < values.size(); ++i) store(bytes + 2 * i, c10::BFloat16(values[i]).x);
}

void decode_bf16(const std::byte* bytes, std::span<float> values) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = c10::BFloat16(load<std::uint16_t>(bytes + 2 * i), c10::BFloat16::from_bits());
  }
}

float scale_of(std::span<const float> block) {
  float size = 0;
  bool finite = true;
  for (const float value : block) {
    finite = finite && std::isfinite(value);
    size = std::max(size, std::abs(value));
  }
  return finite ? size / largest : std::numeric_limits<float>::quiet_NaN();
}

// Layout: all scales, then all elements.
void encode_int8(std::span<const float> values, std::byte* bytes) {
  const auto count = static_cast<std::int64_t>(values.size());
  std::byte* elements = bytes + blocks_of(count) * sizeof(float);
  for (std::int64_t begin = 0; begin < count; begin += block_elements) {
    const auto block = values.subspan(begin, std::min(block_elements, count - begin));
    const float scale = scale_of(block);
    store(bytes + begin / block_elements * sizeof(float), scale);
    for (std::size_t i = 0; i < block.size(); ++i) {
      // The inverse of the scale may be infinite, so divide.
      const float quotient = scale > 0 ? std::clamp(std::nearbyint(block[i] / scale), -largest, largest) : 0.0F;
      store(elements + begin + i, static_cast<std::int8_t>(quotient));
    }
  }
}

void decode_int8(const std::byte* bytes, std::span<float> values) {
  const auto count = static_cast<std::int64_t>(values.size());
  const std::byte* elements = bytes + blocks_of(count) * sizeof(float);
  for (std::int64_t begin = 0; begin < count; begin += block_elements) {
    const auto block = values.subspan(begin, std::min(block_elements, count - begin));
    const auto scale = load<float>(bytes + begin / block_elements * sizeof(float));
    for (std::size_t i = 0; i < block.size(); ++i) {
      block[i] = scale * static_cast<float>(load<std::int8_t>(elements + begin + i));
    }
  }
}

}  // namespace

std::int64_t encoded_bytes(WireFormat format, std::int64_t elements) {
  switch (format) {
    case WireFormat::fp32:
      return 4 * elements;
    case WireFormat::bf16:
      return 2 * elements;
    case WireFormat::int8:
      return elements + blocks_of(elements) * static_cast<std::int64_t>(sizeof(float));
  }
  return 0;
}

void encode(WireFormat format, std::span<const float> values, std::span<std::byte> bytes) {
  switch (format) {
    case WireFormat::fp32:
      if (!values.empty()) std::memcpy(bytes.data(), values.data(), values.size_bytes());
      return;
    case WireFormat::bf16:
      return encode_bf16(values, bytes.data());
    case WireFormat::int8:
      return encode_int8(values, bytes.data());
  }
}

void decode(WireFormat format, std::span<const std::byte> bytes, std::span<float> values) {
  switch (format) {
    case WireFormat::fp32:
      if (!values.empty()) std::memcpy(values.data(), bytes.data(), values.size_bytes());
      return;
    case WireFormat::bf16:
      return decode_bf16(bytes.data(), values);
    case WireFormat::int8:
      return decode_int8(bytes.data(), values);
  }
}

void encode_with_feedback(WireFormat format, std::span<const float> values, std::span<float> lost,
                          std::span<std::byte> bytes) {
  std::vector<float> decoded(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) lost[i] += values[i];
  encode(format, lost, bytes);
  decode(format, bytes, decoded);
  for (std::size_t i = 0; i < values.size(); ++i) lost[i] -= decoded[i];
}

}  // namespace tutti::local_sgd
