#pragma once
// The encoding of fp32 gradients that are sent between nodes: fewer bytes, fewer significant bits.
//
// Sums stay fp32. Every rank encodes its contributions to the shards of other ranks. The owner of a shard decodes them,
// adds and scales in fp32 and encodes the result. All ranks apply the decoded result, also the owner, so that replicas
// stay equal. Ranks that share memory encode nothing. PyTorch's fp16_compress_hook and bf16_compress_hook encode in the
// same places but add in the narrow type.
#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace tutti {

/// A codec. Implementations must be stateless and thread safe. Every rank must use an equal codec.
class WireCodec {
 public:
  virtual ~WireCodec() = default;
  /// Identifies the codec. Ranks compare the names when they make a reducer.
  virtual const std::string& name() const = 0;
  /// The length of `elements` encoded values, in bytes.
  virtual std::size_t encoded_bytes(std::size_t elements) const = 0;
  /// Encodes `values` into `bytes`, which holds encoded_bytes(values.size()) and is aligned for fp32. A non-finite
  /// value must decode to a non-finite value.
  virtual void encode(std::span<const float> values, std::span<std::byte> bytes) const = 0;
  /// Decodes `bytes` into `values`, which holds as many elements as were encoded.
  virtual void decode(std::span<const std::byte> bytes, std::span<float> values) const = 0;
};

/// IEEE half precision: 11 significant bits. Each message scales its values by a power of two. So no value overflows,
/// and only values below 2^-28 of the message's largest have fewer bits. PyTorch's fp16_compress_hook does not scale:
/// it overflows above 65504 and loses bits below 6e-5.
std::shared_ptr<const WireCodec> fp16_codec();
/// bfloat16: 8 significant bits, with the range of fp32.
std::shared_ptr<const WireCodec> bf16_codec();
/// 8-bit integers and a scale for each 256 values: 26 % of the bytes of fp32. A value is rounded up or down at random
/// to a multiple of its block's largest magnitude / 127, so that the expected result is the value (QSGD, Alistarh et
/// al., NeurIPS 2017, 1610.02132). Equal messages are rounded equally. A NaN or an infinity makes its block NaN.
std::shared_ptr<const WireCodec> int8_codec();

}  // namespace tutti
