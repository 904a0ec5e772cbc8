#include "tutti/core/logging.h"

#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <utility>

#include "tutti/core/error.h"

namespace tutti {
namespace {

constexpr std::array<std::pair<std::string_view, LogLevel>, 5> level_names{{{"debug", LogLevel::debug},
                                                                            {"info", LogLevel::info},
                                                                            {"warning", LogLevel::warning},
                                                                            {"error", LogLevel::error},
                                                                            {"off", LogLevel::off}}};

std::string_view name_of(LogLevel level) {
  for (const auto& [name, named] : level_names) {
    if (named == level) return name;
  }
  return "?";
}

LogLevel level_from_environment() {
  const char* text = std::getenv("TUTTI_LOG_LEVEL");  // NOLINT(concurrency-mt-unsafe)
  if (text == nullptr || *text == '\0') return LogLevel::warning;
  if (const auto level = parse_log_level(text)) return *level;
  throw UsageError("TUTTI_LOG_LEVEL='" + std::string(text) +
                   "' is not a level: use debug, info, warning, error or off");
}

}  // namespace

std::optional<LogLevel> parse_log_level(std::string_view text) {
  for (const auto& [name, level] : level_names) {
    if (name == text) return level;
  }
  return std::nullopt;
}

Logger::Logger(int rank, std::optional<LogLevel> level)
    : rank_(rank), level_(level ? *level : level_from_environment()) {}

void Logger::write(LogLevel level, std::string_view message) const {
  if (level < level_) return;
  if (level < LogLevel::warning && rank_ != 0) return;
  std::string line = "[tutti rank " + std::to_string(rank_) + "] ";
  line.append(name_of(level)).append(": ").append(message).push_back('\n');
  // A log line that cannot be written is dropped.
  std::string_view rest = line;
  while (!rest.empty()) {
    const ssize_t written = ::write(STDERR_FILENO, rest.data(), rest.size());
    if (written < 0 && errno != EINTR) return;
    if (written > 0) rest.remove_prefix(static_cast<std::size_t>(written));
  }
}

}  // namespace tutti
