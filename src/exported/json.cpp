#include "exported/json.h"

#include <cmath>
#include <limits>
#include <utility>

#include "core/json_depth.h"
#include "tutti/core/error.h"

namespace tutti::exported {
namespace {

[[noreturn]] void expected(const char* type, const Json& json) {
  std::string shown = json.dump(-1, ' ', true, Json::error_handler_t::replace);
  if (shown.size() > 60) shown = shown.substr(0, 60) + "...";
  throw CheckpointError(std::string("expected ") + type + ", found " + shown);
}

}  // namespace

Json parse_json(const std::string& text, const std::string& name) {
  if (is_json_deeper_than(max_json_depth, text)) {
    throw CheckpointError(name + " is nested deeper than " + std::to_string(max_json_depth) + " levels");
  }
  try {
    return Json::parse(text);
  } catch (const Json::exception& error) {
    throw CheckpointError(name + " is not JSON: " + error.what());
  }
}

std::int64_t integer_of(const Json& json) {
  if (json.is_number_unsigned()) {
    const auto value = json.get<std::uint64_t>();
    if (value <= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
      return static_cast<std::int64_t>(value);
    }
  } else if (json.is_number_integer()) {
    return json.get<std::int64_t>();
  }
  expected("an integer", json);
}

double number_of(const Json& json) {
  if (json.is_number()) return json.get<double>();
  // The export schema stores these numbers as strings, because JSON has no literals for them.
  if (json == "Infinity") return std::numeric_limits<double>::infinity();
  if (json == "-Infinity") return -std::numeric_limits<double>::infinity();
  if (json == "NaN") return std::numeric_limits<double>::quiet_NaN();
  expected("a number", json);
}

bool boolean_of(const Json& json) {
  if (!json.is_boolean()) expected("a boolean", json);
  return json.get<bool>();
}

const std::string& text_of(const Json& json) {
  if (!json.is_string()) expected("a string", json);
  return json.get_ref<const std::string&>();
}

const Json& list_of(const Json& json) {
  if (!json.is_array()) expected("a list", json);
  return json;
}

const Json& object_of(const Json& json) {
  if (!json.is_object()) expected("an object", json);
  return json;
}

const Json& field_of(const Json& json, const char* name) {
  const auto found = object_of(json).find(name);
  if (found == json.end()) throw CheckpointError(std::string("the field '") + name + "' is missing");
  return *found;
}

const Json* optional_field(const Json& json, const char* name) {
  const auto found = object_of(json).find(name);
  return found == json.end() || found->is_null() ? nullptr : &*found;
}

std::pair<std::string, const Json*> tagged(const Json& json) {
  std::pair<std::string, const Json*> found{{}, nullptr};
  for (const auto& [name, value] : object_of(json).items()) {
    if (value.is_null()) continue;
    if (found.second != nullptr) expected("an object with one field", json);
    found = {name, &value};
  }
  if (found.second == nullptr) expected("an object with one field", json);
  return found;
}

}  // namespace tutti::exported
