#pragma once
// How fp32 gradients travel between nodes: fewer bytes for fewer digits. A place for compressors.
//
// Sums with a codec stay sums of fp32: every rank encodes its versions of the others' slices, an owner decodes them,
// adds and scales in fp32, and encodes the result, which all ranks apply decoded, its owner too, so that replicas stay
// equal. Nothing is encoded where nothing travels: among ranks that share memory. That is the form of PyTorch's
// fp16_compress_hook and bf16_compress_hook, but for the sum, which is not made in the narrow type.
#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace tutti {

/// Stateless and thread safe. Every rank must use an equal one.
class WireCodec {
 public:
  virtual ~WireCodec() = default;
  /// Equal names mean equal codecs: compared when a reducer is made.
  virtual const std::string& name() const = 0;
  /// Length of `elements` encoded numbers.
  virtual std::size_t encoded_bytes(std::size_t elements) const = 0;
  /// `bytes` holds encoded_bytes() and is aligned for fp32. What is not finite must decode to what is not finite.
  virtual void encode(std::span<const float> values, std::span<std::byte> bytes) const = 0;
  /// The other way round. `values` is as long as what was encoded.
  virtual void decode(std::span<const std::byte> bytes, std::span<float> values) const = 0;
};

/// IEEE half precision: 11 significant bits, up to 65504. What travels is one rank's version, or the sum of a node's
/// ranks divided by a power of two, at least their number: so nothing overflows where the mean would not.
std::shared_ptr<const WireCodec> fp16_codec();
/// bfloat16: 8 significant bits, the range of fp32.
std::shared_ptr<const WireCodec> bf16_codec();

}  // namespace tutti
