#pragma once
// Reads a run from its file, without the values that a later start has made void.
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <iosfwd>
#include <map>
#include <string>
#include <vector>

namespace tutti {

struct Point {
  std::int64_t step = 0;
  double value = 0;
};

/// The values of one scalar, in increasing order of steps.
struct Series {
  std::string name{};
  std::vector<Point> points{};
};

/// The name of the text that says why a run ended. The Trainer logs it.
inline constexpr const char* end_of_training = "end of training";

struct Text {
  std::int64_t step = 0;
  std::string name{};
  std::string text{};
};

struct RunRecord {
  std::string name{};
  std::map<std::string, std::string> hyperparameters{};  ///< as the page shows them
  std::vector<Series> series{};                          ///< in the order in which they were first logged
  std::vector<Text> texts{};
  /// The first step of each session: of the first one, and of each resumption that is not void.
  std::vector<std::int64_t> session_steps{};
  std::int64_t last_step = 0;
  double started = 0;       ///< seconds since 1970
  double wall_seconds = 0;  ///< of all sessions, without the pauses between them
  std::size_t void_values = 0;
  std::size_t unread_lines = 0;

  /// Why the last session ended; empty if it did not log that.
  std::string end_reason() const;
  /// nullptr if the scalar was never logged.
  const Series* find(const std::string& scalar) const;
};

/// Reads all lines. A run without a line of a JsonlTracker has no sessions.
RunRecord parse_run(std::istream& lines);

/// `path`: the file, or a folder with metrics.jsonl. Throws UsageError if it does not exist or has no event.
RunRecord read_run(const std::filesystem::path& path);

}  // namespace tutti
