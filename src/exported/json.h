#pragma once
// Access to untrusted JSON: with a limit on its depth, and without lossy conversions.
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

namespace tutti::exported {

using Json = nlohmann::json;

/// The maximum depth of a program's JSON. Each nested branch takes about ten levels.
inline constexpr int max_json_depth = 256;

/// Throws CheckpointError if `text` is not JSON or is nested too deeply. `name` names the text in the message.
Json parse_json(const std::string& text, const std::string& name);

/// These throw CheckpointError if the value has another type.
std::int64_t integer_of(const Json& json);
double number_of(const Json& json);
bool boolean_of(const Json& json);
const std::string& text_of(const Json& json);
const Json& list_of(const Json& json);
const Json& object_of(const Json& json);
const Json& field_of(const Json& json, const char* name);
/// nullptr if the field is missing or null.
const Json* optional_field(const Json& json, const char* name);
/// Returns the name and the value of the one field of a tagged union that is not null. Throws CheckpointError if there
/// is not exactly one.
std::pair<std::string, const Json*> tagged(const Json& json);

}  // namespace tutti::exported
