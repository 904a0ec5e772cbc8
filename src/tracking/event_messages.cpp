#include "tracking/event_messages.h"

#include <bit>
#include <cstring>
#include <span>
#include <sstream>
#include <type_traits>

#include "tracking/proto_encoder.h"
#include "tutti/detail/core/crc32c.h"

namespace tutti {
namespace {

// Enumerators in the .proto files.
constexpr int type_float = 1;
constexpr int type_string = 7;
constexpr int session_start = 1;
constexpr int class_tensor = 2;

ProtoMessage event(double time, std::int64_t step) {
  ProtoMessage message;
  message.real64(1, time);
  if (step != 0) message.integer(2, step);
  return message;
}

/// The checksum of bytes that contain their checksum is weak, so a record stores a rotated checksum.
std::uint32_t masked_crc(std::string_view bytes) {
  const auto crc = crc32c(std::as_bytes(std::span(bytes.data(), bytes.size())));
  return std::rotr(crc, 15) + 0xA282EAD8U;
}

template <typename Integer>
std::string little_endian(Integer value) {
  static_assert(std::endian::native == std::endian::little);
  std::string bytes(sizeof(value), '\0');
  std::memcpy(bytes.data(), &value, sizeof(value));
  return bytes;
}

ProtoMessage plugin_metadata(const std::string& plugin, const ProtoMessage& content) {
  ProtoMessage data;
  data.bytes(1, plugin);
  if (!content.encoded().empty()) data.message(2, content);
  return ProtoMessage().message(1, data).integer(4, class_tensor);
}

/// google.protobuf.Value.
ProtoMessage any_value(const Hyperparameters::mapped_type& value) {
  ProtoMessage message;
  if (const auto* flag = std::get_if<bool>(&value)) message.integer(4, *flag ? 1 : 0);
  if (const auto* whole = std::get_if<std::int64_t>(&value)) message.real64(2, static_cast<double>(*whole));
  if (const auto* real = std::get_if<double>(&value)) message.real64(2, *real);
  if (const auto* text = std::get_if<std::string>(&value)) message.text(3, *text);
  return message;
}

std::string shown(const Hyperparameters::mapped_type& value) {
  std::ostringstream text;
  std::visit(
      [&](const auto& plain) {
        if constexpr (std::is_same_v<std::decay_t<decltype(plain)>, bool>) text << std::boolalpha;
        text << plain;
      },
      value);
  return text.str();
}

/// A bar or a line end would end a cell of a Markdown table.
std::string table_cell(const std::string& text) {
  std::string cell;
  for (const char c : text) {
    if (c == '|' || c == '\\') cell += '\\';
    cell += c == '\n' || c == '\r' ? ' ' : c;
  }
  return cell;
}

}  // namespace

std::string event_record(const std::string& event) {
  const auto length = little_endian(static_cast<std::uint64_t>(event.size()));
  return length + little_endian(masked_crc(length)) + event + little_endian(masked_crc(event));
}

std::string file_version_event(double time) {
  return event(time, 0).bytes(3, "brain.Event:2").encoded();
}

std::string session_start_event(double time, std::int64_t step) {
  return event(time, step).message(7, ProtoMessage().integer(1, session_start)).encoded();
}

std::string scalars_event(double time, std::int64_t step, const Scalars& scalars) {
  ProtoMessage summary;
  for (const auto& [name, value] : scalars) {
    summary.message(1, ProtoMessage().text(1, name).real32(2, static_cast<float>(value)));
  }
  return event(time, step).message(5, summary).encoded();
}

std::string text_event(double time, std::int64_t step, const std::string& name, const std::string& text) {
  // A scalar tensor.
  const auto tensor = ProtoMessage().integer(1, type_string).message(2, {}).text(8, text);
  const auto value = ProtoMessage().text(1, name).message(8, tensor).message(9, plugin_metadata("text", {}));
  return event(time, step).message(5, ProtoMessage().message(1, value)).encoded();
}

std::string hyperparameters_event(double time, std::int64_t step, const Hyperparameters& hyperparameters) {
  ProtoMessage info;  // SessionStartInfo; a map is a repeated message of key and value
  for (const auto& [name, value] : hyperparameters) {
    info.message(1, ProtoMessage().text(1, name).message(2, any_value(value)));
  }
  info.real64(5, time);
  const auto content = ProtoMessage().message(3, info);  // HParamsPluginData, version 0
  // The metadata holds all values; the tensor is empty.
  const auto empty_shape = ProtoMessage().message(2, {});
  const auto tensor = ProtoMessage().integer(1, type_float).message(2, empty_shape);
  const auto value = ProtoMessage()
                         .bytes(1, "_hparams_/session_start_info")
                         .message(8, tensor)
                         .message(9, plugin_metadata("hparams", content));
  return event(time, step).message(5, ProtoMessage().message(1, value)).encoded();
}

std::string hyperparameters_table(const std::string& run, const Hyperparameters& hyperparameters) {
  std::string table = "| " + table_cell(run) + " | |\n|---|---|\n";
  for (const auto& [name, value] : hyperparameters) {
    table += "| " + table_cell(name) + " | " + table_cell(shown(value)) + " |\n";
  }
  return table;
}

}  // namespace tutti
