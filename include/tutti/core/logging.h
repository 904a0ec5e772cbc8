#pragma once
// Log lines on standard error, prefixed with the rank. A Logger is a value; there is no global logger.
#include <optional>
#include <string>
#include <string_view>

namespace tutti {

/// The lowest severity that is written. TUTTI_LOG_LEVEL takes these names.
enum class LogLevel {
  debug,    ///< all messages
  info,     ///< progress, warnings and errors
  warning,  ///< warnings and errors: the default
  error,    ///< errors only
  off,      ///< no messages
};

/// Parses "debug", "info", "warning", "error", "off"; nullopt for anything else.
std::optional<LogLevel> parse_log_level(std::string_view text);

/// Writes "[tutti rank R] level: message" lines, each with one write, so that lines of several ranks do not mix. Rank 0
/// alone writes debug and info messages; every rank writes warnings and errors. Thread safe.
class Logger {
 public:
  /// `level` unset: taken from TUTTI_LOG_LEVEL (default: warning). Throws UsageError for an unknown level.
  explicit Logger(int rank = 0, std::optional<LogLevel> level = std::nullopt);

  /// Details for debugging. Rank 0 only.
  void debug(std::string_view message) const { write(LogLevel::debug, message); }
  /// Progress. Rank 0 only.
  void info(std::string_view message) const { write(LogLevel::info, message); }
  /// A problem that does not stop the run. Every rank.
  void warning(std::string_view message) const { write(LogLevel::warning, message); }
  /// An error that is not thrown. Every rank.
  void error(std::string_view message) const { write(LogLevel::error, message); }

 private:
  void write(LogLevel level, std::string_view message) const;

  int rank_;
  LogLevel level_;
};

}  // namespace tutti
