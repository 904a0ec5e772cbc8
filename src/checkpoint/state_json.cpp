#include "checkpoint/state_json.h"

#include <array>
#include <bit>
#include <charconv>
#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <limits>
#include <string>

#include "core/json_depth.h"

namespace tutti::checkpoint {
namespace {

using nlohmann::json;

constexpr std::size_t hex_digits = 16;

[[noreturn]] void reject(const std::string& name, const std::string& why) {
  throw CheckpointError("the value '" + name + "' " + why);
}

void check_utf8(const std::string& text, const std::string& name) {
  try {
    json(text).dump();
  } catch (const json::exception&) {
    throw UsageError("cannot save the value '" + name + "': names and texts must be UTF-8; encode bytes as a tensor");
  }
}

json list_to_json(const std::vector<double>& values) {
  json list = json::array();
  for (const double value : values) list.push_back(double_to_json(value));
  return list;
}

struct ToJson {
  json operator()(bool value) const { return value; }
  json operator()(std::int64_t value) const { return value; }
  json operator()(double value) const { return double_to_json(value); }
  json operator()(const std::string& value) const { return value; }
  json operator()(const std::vector<std::int64_t>& values) const { return {{"integers", values}}; }
  json operator()(const std::vector<double>& values) const { return {{"doubles", list_to_json(values)}}; }
  json operator()(const at::Tensor&) const { return nullptr; }
};

template <typename Value, typename Read>
std::vector<Value> list_from_json(const json& list, const std::string& name, Read read) {
  if (!list.is_array()) reject(name, "is not a list");
  std::vector<Value> values;
  values.reserve(list.size());
  for (const json& value : list) values.push_back(read(value, name));
  return values;
}

StateValue value_from_json(const json& value, const std::string& name) {
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_number_integer()) return integer_from_json(value, name);
  if (value.is_string()) return value.get<std::string>();
  if (value.is_object() && value.size() == 1) {
    const auto entry = value.begin();
    if (entry.key() == "integers") return list_from_json<std::int64_t>(entry.value(), name, integer_from_json);
    if (entry.key() == "doubles") return list_from_json<double>(entry.value(), name, double_from_json);
  }
  return double_from_json(value, name);
}

}  // namespace

json double_to_json(double value) {
  if (std::isfinite(value)) return value;
  std::array<char, hex_digits + 1> digits{};
  std::snprintf(digits.data(), digits.size(), "%016" PRIx64, std::bit_cast<std::uint64_t>(value));
  return {{"bits", digits.data()}};
}

double double_from_json(const json& value, const std::string& name) {
  if (value.is_number_float()) return value.get<double>();
  if (!value.is_object() || value.size() != 1 || !value.contains("bits") || !value["bits"].is_string()) {
    reject(name, "has an unknown type");
  }
  const auto& digits = value["bits"].get_ref<const std::string&>();
  std::uint64_t bits = 0;
  const char* end = digits.data() + digits.size();
  const auto [stopped, error] = std::from_chars(digits.data(), end, bits, 16);
  if (digits.size() != hex_digits || stopped != end || error != std::errc{}) reject(name, "has invalid bits");
  return std::bit_cast<double>(bits);
}

std::int64_t integer_from_json(const json& value, const std::string& name) {
  if (!value.is_number_integer()) reject(name, "is not a whole number");
  if (value.is_number_unsigned() &&
      value.get<std::uint64_t>() > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
    reject(name, "is too large");
  }
  return value.get<std::int64_t>();
}

json parse_json(const std::string& text) {
  constexpr int max_depth = 16;
  if (is_json_deeper_than(max_depth, text)) {
    throw CheckpointError("it is nested deeper than " + std::to_string(max_depth) + " levels");
  }
  json parsed = json::parse(text, nullptr, false);
  if (parsed.is_discarded()) throw CheckpointError("it is not JSON");
  return parsed;
}

json to_json(const StateDict& state) {
  json object = json::object();
  for (const auto& [name, value] : state.values()) {
    if (std::holds_alternative<at::Tensor>(value)) continue;
    check_utf8(name, name);
    if (const auto* text = std::get_if<std::string>(&value)) check_utf8(*text, name);
    object[name] = std::visit(ToJson{}, value);
  }
  return object;
}

StateDict state_from_json(const json& object) {
  if (!object.is_object()) throw CheckpointError("a part's values are not an object");
  StateDict state;
  for (const auto& [name, value] : object.items()) state.set(name, value_from_json(value, name));
  return state;
}

}  // namespace tutti::checkpoint
