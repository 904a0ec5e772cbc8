#include "flight/call_text.h"

#include <algorithm>
#include <cctype>

namespace tutti::flight {
namespace {

/// True for "reduce(sum)": an identifier, followed by a parenthesis.
bool is_call_text(std::string_view name) {
  const auto is_identifier = [](unsigned char character) { return std::isalnum(character) != 0 || character == '_'; };
  const auto end = std::ranges::find_if_not(name, is_identifier);
  return end != name.begin() && end != name.end() && *end == '(';
}

}  // namespace

std::string call_text(std::string_view op_name, std::string_view arguments, std::string_view name) {
  std::string text(op_name);
  text.append("(").append(arguments);
  if (!name.empty()) text.append(arguments.empty() ? "'" : ", '").append(name).append("'");
  return text + ")";
}

std::string describe_call(std::string_view op_name, std::string_view name, std::uint64_t number,
                          std::string_view call_site) {
  std::string text(is_call_text(name) ? name : op_name);
  if (!name.empty() && !is_call_text(name)) text.append(" '").append(name).append("'");
  text.append(" (operation ").append(std::to_string(number));
  if (!call_site.empty()) text.append(", ").append(call_site);
  return text + ")";
}

std::string describe_call(const RecordedOperation& operation) {
  const std::string_view text = operation.text;
  std::string_view name;
  if (const auto quote = text.find('\''); quote != std::string_view::npos) {
    name = text.substr(quote + 1);
    if (name.ends_with("')")) name.remove_suffix(2);
  }
  return describe_call(text.substr(0, text.find('(')), name, operation.operation, operation.call_site);
}

}  // namespace tutti::flight
