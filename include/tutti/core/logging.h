#pragma once
// Log lines on standard error, marked with the rank. A Logger is a value: there is no global one.
#include <optional>
#include <string>
#include <string_view>

namespace tutti {

/// The least of what is written; TUTTI_LOG_LEVEL takes these words.
enum class LogLevel {
  debug,    ///< everything
  info,     ///< what goes on, and all below
  warning,  ///< what the user should know, and errors: the default
  error,    ///< errors only
  off,      ///< nothing
};

/// Parses "debug", "info", "warning", "error", "off"; nullopt for anything else.
std::optional<LogLevel> parse_log_level(std::string_view text);

/// Writes "[tutti rank R] level: message" lines, each in one write so that ranks do not interleave within a line.
/// info and debug are written by rank 0 only, warnings and errors by every rank. Thread safe.
class Logger {
 public:
  /// The level comes from TUTTI_LOG_LEVEL (default: warning; UsageError for an unknown word) unless given.
  explicit Logger(int rank = 0, std::optional<LogLevel> level = std::nullopt);

  /// For those who look for a mistake. Rank 0 only.
  void debug(std::string_view message) const { write(LogLevel::debug, message); }
  /// What goes on. Rank 0 only.
  void info(std::string_view message) const { write(LogLevel::info, message); }
  /// Something that the user should know, and that does not stop the run. Every rank.
  void warning(std::string_view message) const { write(LogLevel::warning, message); }
  /// Something that went wrong and is not thrown. Every rank.
  void error(std::string_view message) const { write(LogLevel::error, message); }

 private:
  void write(LogLevel level, std::string_view message) const;

  int rank_;
  LogLevel level_;
};

}  // namespace tutti
