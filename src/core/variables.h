#pragma once
// Parses environment variables. Errors name the variable and its value.
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/core/environment.h"

namespace tutti {

/// NAME='value', for messages.
std::string format_variable(const std::string& name, const std::string& value);
std::string format_variable(const std::string& name, int value);

class VariableReader {
 public:
  explicit VariableReader(const VariableLookup& lookup) : lookup_(lookup) {}

  bool has(const std::string& name) const { return lookup_(name).has_value(); }
  /// nullopt if it is unset or empty.
  std::optional<std::string> text(const std::string& name) const;
  /// An integer of 0 or more; nullopt if it is unset. Throws UsageError.
  std::optional<int> number(const std::string& name) const;
  bool flag(const std::string& name) const;
  /// The value of the first of several alternative names that is set; nullopt if none is.
  std::optional<std::string> first_set(const std::vector<std::string>& names) const;

 private:
  const VariableLookup& lookup_;
};

struct RankAndSize {
  int rank;
  int size;
};

/// A rank and its size; nullopt if neither is set. Throws UsageError if only one is set, or the rank is out of range.
std::optional<RankAndSize> read_pair(const VariableReader& variables, const std::string& rank_name,
                                     const std::string& size_name);

/// Parses a port from 1 to 65535; nullopt for any other text.
std::optional<std::uint16_t> parse_port(std::string_view text);

/// A port; nullopt if it is unset. Throws UsageError.
std::optional<std::uint16_t> read_port(const VariableReader& variables, const std::string& name = "MASTER_PORT");

/// A host name or an address; nullopt if it is unset. Throws UsageError.
std::optional<std::string> read_address(const VariableReader& variables, const std::string& name = "MASTER_ADDR");
/// Throws UsageError for "[::1]". `name` is that of the variable or option.
void require_no_brackets(const std::string& name, const std::string& address);

}  // namespace tutti
