#include "tutti/comm/wire_codec.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "comm/reduction/int8_blocks.h"

namespace tutti {
namespace {

// Not above ATen's grain size, so that the kernels run on the calling thread.
constexpr std::size_t chunk_elements = 32768;

/// The part [begin, begin + length) of an array, as a tensor.
at::Tensor view_of(const void* array, at::ScalarType dtype, std::size_t begin, std::size_t length) {
  auto* const bytes = static_cast<std::byte*>(const_cast<void*>(array));
  return at::from_blob(bytes + begin * c10::elementSize(dtype), {static_cast<std::int64_t>(length)}, dtype);
}

/// Encodes to one of LibTorch's 16-bit floating-point types, with LibTorch's vectorized conversion. A message with a
/// header begins with a scale: a power of two that makes the largest value 2^14 to 2^15.
class NarrowCodec final : public WireCodec {
 public:
  /// The header has the size of the scale, or 0.
  NarrowCodec(std::string name, at::ScalarType dtype, std::size_t header_bytes)
      : name_(std::move(name)), dtype_(dtype), header_bytes_(header_bytes) {}

  const std::string& name() const override { return name_; }
  std::size_t encoded_bytes(std::size_t elements) const override {
    return header_bytes_ + elements * c10::elementSize(dtype_);
  }
  void encode(std::span<const float> values, std::span<std::byte> bytes) const override {
    const at::AutoDispatchBelowADInplaceOrView without_autograd;
    const float scale = header_bytes_ > 0 ? scale_for(values) : 1;
    if (header_bytes_ > 0) std::memcpy(bytes.data(), &scale, header_bytes_);
    auto* const encoded = bytes.data() + header_bytes_;
    for (std::size_t begin = 0; begin < values.size(); begin += chunk_elements) {
      const std::size_t length = std::min(chunk_elements, values.size() - begin);
      const at::Tensor from = view_of(values.data(), at::kFloat, begin, length);
      view_of(encoded, dtype_, begin, length).copy_(scale == 1 ? from : from.mul(scale));
    }
  }
  void decode(std::span<const std::byte> bytes, std::span<float> values) const override {
    const at::AutoDispatchBelowADInplaceOrView without_autograd;
    float scale = 1;
    if (header_bytes_ > 0) std::memcpy(&scale, bytes.data(), header_bytes_);
    const auto* const encoded = bytes.data() + header_bytes_;
    for (std::size_t begin = 0; begin < values.size(); begin += chunk_elements) {
      const std::size_t length = std::min(chunk_elements, values.size() - begin);
      at::Tensor to = view_of(values.data(), at::kFloat, begin, length);
      to.copy_(view_of(encoded, dtype_, begin, length));
      if (scale != 1) to.mul_(1 / scale);
    }
  }

 private:
  /// 1 for zeros only and where a value is not finite.
  static float scale_for(std::span<const float> values) {
    constexpr std::uint32_t magnitude = 0x7fffffff;
    constexpr int largest_exponent = 14;
    constexpr int limit = 126;  // the scale and its reciprocal are normal
    std::uint32_t largest = 0;  // magnitudes compare as integers, which compilers vectorize
    for (const float value : values) largest = std::max(largest, std::bit_cast<std::uint32_t>(value) & magnitude);
    const float as_float = std::bit_cast<float>(largest);
    if (largest == 0 || !std::isfinite(as_float)) return 1;
    return std::ldexp(1.0F, std::clamp(largest_exponent - std::ilogb(as_float), -limit, limit));
  }

  std::string name_;
  at::ScalarType dtype_;
  std::size_t header_bytes_;
};

class Int8Codec final : public WireCodec {
 public:
  const std::string& name() const override { return name_; }
  std::size_t encoded_bytes(std::size_t elements) const override { return comm::int8_bytes(elements); }
  void encode(std::span<const float> values, std::span<std::byte> bytes) const override {
    comm::encode_int8(values, bytes, comm::Rounding::stochastic);
  }
  void decode(std::span<const std::byte> bytes, std::span<float> values) const override {
    comm::decode_int8(bytes, values);
  }

 private:
  std::string name_ = "int8";
};

}  // namespace

std::shared_ptr<const WireCodec> fp16_codec() {
  return std::make_shared<NarrowCodec>("fp16", at::kHalf, sizeof(float));
}
std::shared_ptr<const WireCodec> bf16_codec() {
  return std::make_shared<NarrowCodec>("bf16", at::kBFloat16, 0);
}
std::shared_ptr<const WireCodec> int8_codec() {
  return std::make_shared<Int8Codec>();
}

}  // namespace tutti
