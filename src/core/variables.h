#pragma once
// Reading variables: what is wrong with one becomes an error that names it.
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
  /// nullopt where it is not set or empty.
  std::optional<std::string> text(const std::string& name) const;
  /// A whole number of 0 or more; nullopt where it is not set. Throws UsageError.
  std::optional<int> number(const std::string& name) const;
  bool flag(const std::string& name) const;
  /// Of several names for one thing the first that is set; nullopt where none is.
  std::optional<std::string> first_set(const std::vector<std::string>& names) const;

 private:
  const VariableLookup& lookup_;
};

struct RankAndSize {
  int rank;
  int size;
};

/// A rank and the size it belongs to; nullopt where neither is set. Throws UsageError where only one is, or where they
/// contradict each other.
std::optional<RankAndSize> read_pair(const VariableReader& variables, const std::string& rank_name,
                                     const std::string& size_name);

/// The port that `text` is, from 1 to 65535; nullopt where it is something else.
std::optional<std::uint16_t> parse_port(std::string_view text);

/// A port; nullopt where it is not set. Throws UsageError.
std::optional<std::uint16_t> read_port(const VariableReader& variables, const std::string& name = "MASTER_PORT");

}  // namespace tutti
