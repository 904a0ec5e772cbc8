#pragma once
// The texts of a call: one for the flight record, one for messages. No I/O.
#include <cstdint>
#include <string>
#include <string_view>

#include "flight/rank_record.h"

namespace tutti::flight {

/// The text of an entry: "all_reduce(float [4], sum, 'loss')". `arguments` must hold no apostrophe.
std::string call_text(std::string_view op_name, std::string_view arguments, std::string_view name);

/// "all_reduce 'loss' (operation 17, train.cpp:42)". Empty texts are left out. A name that is the text of a call is
/// that of the user's call which led to this one, and replaces `op_name`: "reduce(sum) (operation 3)".
std::string describe_call(std::string_view op_name, std::string_view name, std::uint64_t number,
                          std::string_view call_site = {});
/// The same for an entry. Long texts are truncated.
std::string describe_call(const RecordedOperation& operation);

}  // namespace tutti::flight
