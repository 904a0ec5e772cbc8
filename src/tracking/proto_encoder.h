#pragma once
// Protocol Buffers' wire format, as far as event files need it: protobuf.dev/programming-guides/encoding.
#include <cstdint>
#include <string>
#include <string_view>

namespace tutti {

/// Builds one message field by field. Writes the fields in the order of the calls, also default values.
class ProtoMessage {
 public:
  ProtoMessage& integer(int field, std::int64_t value);
  ProtoMessage& real32(int field, float value);
  ProtoMessage& real64(int field, double value);
  ProtoMessage& bytes(int field, std::string_view value);
  /// A `string` field, which readers refuse unless it is UTF-8: replaces invalid bytes by U+FFFD.
  ProtoMessage& text(int field, const std::string& value);
  ProtoMessage& message(int field, const ProtoMessage& value) { return bytes(field, value.encoded()); }

  const std::string& encoded() const { return encoded_; }

 private:
  void key(int field, int wire_type);
  void varint(std::uint64_t value);
  void little_endian(std::uint64_t value, int count);

  std::string encoded_;
};

}  // namespace tutti
