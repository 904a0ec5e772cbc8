#pragma once
// The depth of JSON text, for checks before it is parsed: copies, comparisons and output of deep JSON recurse.
#include <string_view>

namespace tutti {

/// True if the lists and objects of the JSON in `text` are nested deeper than `max_depth` levels. `text` need not be
/// valid JSON.
bool is_json_deeper_than(int max_depth, std::string_view text);

}  // namespace tutti
