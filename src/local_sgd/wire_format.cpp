#include "local_sgd/wire_format.h"

#include <memory>
#include <vector>

#include "comm/reduction/int8_blocks.h"
#include "tutti/comm/wire_codec.h"

namespace tutti::local_sgd {
namespace {

const WireCodec& bf16() {
  static const std::shared_ptr<const WireCodec> codec = bf16_codec();
  return *codec;
}

}  // namespace

std::int64_t encoded_bytes(WireFormat format, std::int64_t elements) {
  if (format == WireFormat::bf16) return 2 * elements;
  return static_cast<std::int64_t>(comm::int8_bytes(static_cast<std::size_t>(elements)));
}

void encode(WireFormat format, std::span<const float> values, std::span<std::byte> bytes) {
  if (format == WireFormat::bf16) return bf16().encode(values, bytes);
  comm::encode_int8(values, bytes, comm::Rounding::nearest);
}

void decode(WireFormat format, std::span<const std::byte> bytes, std::span<float> values) {
  if (format == WireFormat::bf16) return bf16().decode(bytes, values);
  comm::decode_int8(bytes, values);
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
