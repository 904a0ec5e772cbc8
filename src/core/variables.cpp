#include "core/variables.h"

#include <algorithm>
#include <cctype>
#include <charconv>

#include "tutti/core/error.h"

namespace tutti {

std::string format_variable(const std::string& name, const std::string& value) {
  return name + "='" + value + "'";
}

std::string format_variable(const std::string& name, int value) {
  return name + "=" + std::to_string(value);
}

std::optional<std::string> VariableReader::text(const std::string& name) const {
  auto value = lookup_(name);
  return value && value->empty() ? std::nullopt : value;
}

std::optional<int> VariableReader::number(const std::string& name) const {
  const auto value = lookup_(name);
  if (!value) return std::nullopt;
  int parsed = 0;
  const char* end = value->data() + value->size();
  const auto [stopped, error] = std::from_chars(value->data(), end, parsed);
  if (error != std::errc{} || stopped != end || parsed < 0) {
    throw UsageError(format_variable(name, *value) + " is not a whole number of 0 or more: correct it, or unset " +
                     name);
  }
  return parsed;
}

bool VariableReader::flag(const std::string& name) const {
  std::string value = lookup_(name).value_or("");
  std::transform(value.begin(), value.end(), value.begin(), [](unsigned char c) { return std::tolower(c); });
  return value == "true" || value == "1";
}

std::optional<std::string> VariableReader::first_set(const std::vector<std::string>& names) const {
  const auto found = std::find_if(names.begin(), names.end(), [&](const auto& name) { return has(name); });
  return found == names.end() ? std::nullopt : std::optional(*found);
}

std::optional<RankAndSize> read_pair(const VariableReader& variables, const std::string& rank_name,
                                     const std::string& size_name) {
  const auto rank = variables.number(rank_name);
  const auto size = variables.number(size_name);
  if (!rank && !size) return std::nullopt;
  if (!rank)
    throw UsageError(format_variable(size_name, *size) + " is set but " + rank_name + " is not: set both or neither");
  if (!size)
    throw UsageError(format_variable(rank_name, *rank) + " is set but " + size_name + " is not: set both or neither");
  if (*size == 0) throw UsageError(format_variable(size_name, *size) + " leaves no rank to run: it must be at least 1");
  if (*rank >= *size) {
    throw UsageError(format_variable(rank_name, *rank) + " is out of range for " + format_variable(size_name, *size) +
                     ": it must be less than " + std::to_string(*size));
  }
  return RankAndSize{*rank, *size};
}

std::optional<std::uint16_t> parse_port(std::string_view text) {
  std::uint16_t port = 0;
  const auto [stopped, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  const bool whole = error == std::errc{} && stopped == text.data() + text.size();
  return whole && port > 0 ? std::optional(port) : std::nullopt;
}

std::optional<std::uint16_t> read_port(const VariableReader& variables, const std::string& name) {
  constexpr int max_port = 65535;
  const auto port = variables.number(name);
  if (!port) return std::nullopt;
  if (*port == 0 || *port > max_port) {
    throw UsageError(format_variable(name, *port) + " is not a port: choose one from 1 to 65535");
  }
  return static_cast<std::uint16_t>(*port);
}

std::optional<std::string> read_address(const VariableReader& variables, const std::string& name) {
  auto address = variables.text(name);
  if (address) require_no_brackets(name, *address);
  return address;
}

void require_no_brackets(const std::string& name, const std::string& address) {
  if (!address.starts_with('[')) return;
  throw UsageError(format_variable(name, address) + ": write an IPv6 address without brackets");
}

}  // namespace tutti
