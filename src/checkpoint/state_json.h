#pragma once
// The values of a StateDict other than tensors, as JSON.
//
//   bool                    true, false
//   std::int64_t            7
//   double                  2.0: always with a point or an exponent, in the shortest text that reads back to the same
//                           bits; NaN and infinities, which JSON lacks, as {"bits": "7ff8000000000000"}
//   std::string             "text", UTF-8
//   std::vector<int64_t>    {"integers": [1, 2]}
//   std::vector<double>     {"doubles": [1.0, {"bits": "7ff0000000000000"}]}
#include <nlohmann/json.hpp>
#include <string>

#include "tutti/state/state_dict.h"

namespace tutti::checkpoint {

/// Throws CheckpointError if `text` is not JSON, or is nested deeper than a file of tutti. An empty list takes more
/// than twenty times the memory of its text, so the depth is checked before the text is parsed.
nlohmann::json parse_json(const std::string& text);

/// Leaves tensors out. Throws UsageError naming a value or a name that is not UTF-8.
nlohmann::json to_json(const StateDict& state);

/// Throws CheckpointError naming a value of another form.
StateDict state_from_json(const nlohmann::json& json);

nlohmann::json double_to_json(double value);
/// Throws CheckpointError, in which the value has the name `name`.
double double_from_json(const nlohmann::json& json, const std::string& name);
std::int64_t integer_from_json(const nlohmann::json& json, const std::string& name);

}  // namespace tutti::checkpoint
