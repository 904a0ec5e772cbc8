#include "tutti/comm/wire_codec.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/from_blob.h>

namespace tutti {
namespace {

/// Encodes to one of LibTorch's 16-bit floating-point types, with LibTorch's vectorized conversion.
class NarrowCodec final : public WireCodec {
 public:
  NarrowCodec(std::string name, at::ScalarType dtype) : name_(std::move(name)), dtype_(dtype) {}

  const std::string& name() const override { return name_; }
  std::size_t encoded_bytes(std::size_t elements) const override { return elements * c10::elementSize(dtype_); }
  void encode(std::span<const float> values, std::span<std::byte> bytes) const override {
    convert(values.data(), at::kFloat, bytes.data(), dtype_, values.size());
  }
  void decode(std::span<const std::byte> bytes, std::span<float> values) const override {
    convert(bytes.data(), dtype_, values.data(), at::kFloat, values.size());
  }

 private:
  static void convert(const void* from, at::ScalarType from_dtype, void* to, at::ScalarType to_dtype,
                      std::size_t elements) {
    // Not above ATen's grain size, so that the kernels run on the calling thread.
    constexpr std::size_t chunk_elements = 32768;
    const at::AutoDispatchBelowADInplaceOrView without_autograd;
    const auto view = [](const void* memory, std::size_t begin, std::size_t length, at::ScalarType dtype) {
      auto* bytes = static_cast<std::byte*>(const_cast<void*>(memory));
      return at::from_blob(bytes + begin * c10::elementSize(dtype), {static_cast<std::int64_t>(length)}, dtype);
    };
    for (std::size_t begin = 0; begin < elements; begin += chunk_elements) {
      const std::size_t length = std::min(chunk_elements, elements - begin);
      view(to, begin, length, to_dtype).copy_(view(from, begin, length, from_dtype));
    }
  }

  std::string name_;
  at::ScalarType dtype_;
};

}  // namespace

std::shared_ptr<const WireCodec> fp16_codec() {
  return std::make_shared<NarrowCodec>("fp16", at::kHalf);
}
std::shared_ptr<const WireCodec> bf16_codec() {
  return std::make_shared<NarrowCodec>("bf16", at::kBFloat16);
}

}  // namespace tutti
