#pragma once
// A run as its file tells it, without what a later start has made void.
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

/// One scalar; steps increase.
struct Series {
  std::string name{};
  std::vector<Point> points{};
};

struct Text {
  std::int64_t step = 0;
  std::string name{};
  std::string text{};
};

struct RunRecord {
  std::string name{};
  std::map<std::string, std::string> hyperparameters{};  ///< as shown
  std::vector<Series> series{};                          ///< in the order in which they were first logged
  std::vector<Text> texts{};
  /// Where its sessions began: the first one, and each resumption that still counts.
  std::vector<std::int64_t> session_steps{};
  std::int64_t last_step = 0;
  double started = 0;       ///< seconds since 1970
  double wall_seconds = 0;  ///< of all sessions, without the time between them
  std::size_t void_values = 0;
  std::size_t unread_lines = 0;

  /// nullptr where it was never logged.
  const Series* find(const std::string& scalar) const;
};

/// Reads lines until the end. A run without a line of ours has no sessions.
RunRecord parse_run(std::istream& lines);

/// `path` is the file or a folder that holds metrics.jsonl. Throws UsageError when there is none, or nothing in it.
RunRecord read_run(const std::filesystem::path& path);

}  // namespace tutti
