#pragma once
// JSON that somebody else wrote: bounded in depth, and without conversions that lose something.
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

namespace tutti::exported {

using Json = nlohmann::json;

/// How deep the JSON of a program may be; a program of nested branches needs about ten levels for each.
inline constexpr int max_json_depth = 256;

/// Throws CheckpointError; `what` names the text.
Json parse_json(const std::string& text, const std::string& what);

/// These throw CheckpointError where the value is something else.
std::int64_t integer_of(const Json& json);
double number_of(const Json& json);
bool boolean_of(const Json& json);
const std::string& text_of(const Json& json);
const Json& list_of(const Json& json);
const Json& object_of(const Json& json);
const Json& field_of(const Json& json, const char* name);
/// nullptr where it is missing or null.
const Json* optional_field(const Json& json, const char* name);
/// The one field of a tagged union: its name and value. Others that are null are ignored.
std::pair<std::string, const Json*> tagged(const Json& json);

}  // namespace tutti::exported
