#include "tracking/proto_encoder.h"

#include <bit>
#include <nlohmann/json.hpp>

namespace tutti {
namespace {

// Wire types.
constexpr int varint_type = 0;
constexpr int fixed64_type = 1;
constexpr int length_type = 2;
constexpr int fixed32_type = 5;

}  // namespace

ProtoMessage& ProtoMessage::integer(int field, std::int64_t value) {
  key(field, varint_type);
  varint(static_cast<std::uint64_t>(value));  // a negative int64 takes ten bytes
  return *this;
}

ProtoMessage& ProtoMessage::real32(int field, float value) {
  key(field, fixed32_type);
  little_endian(std::bit_cast<std::uint32_t>(value), 4);
  return *this;
}

ProtoMessage& ProtoMessage::real64(int field, double value) {
  key(field, fixed64_type);
  little_endian(std::bit_cast<std::uint64_t>(value), 8);
  return *this;
}

ProtoMessage& ProtoMessage::bytes(int field, std::string_view value) {
  key(field, length_type);
  varint(value.size());
  encoded_ += value;
  return *this;
}

ProtoMessage& ProtoMessage::text(int field, const std::string& value) {
  using Json = nlohmann::json;
  const std::string valid = Json(value).dump(-1, ' ', false, Json::error_handler_t::replace);
  return bytes(field, Json::parse(valid).get_ref<const std::string&>());
}

void ProtoMessage::key(int field, int wire_type) {
  varint(static_cast<std::uint64_t>(field) << 3 | static_cast<std::uint64_t>(wire_type));
}

void ProtoMessage::varint(std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) encoded_ += static_cast<char>((value & 0x7F) | 0x80);
  encoded_ += static_cast<char>(value);
}

void ProtoMessage::little_endian(std::uint64_t value, int count) {
  for (int byte = 0; byte < count; ++byte) encoded_ += static_cast<char>(value >> (8 * byte));
}

}  // namespace tutti
