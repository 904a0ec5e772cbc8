#pragma once
// A progress line: share of steps done, rate, time left, loss.
#include <chrono>
#include <cstdint>
#include <functional>
#include <iosfwd>
#include <memory>
#include <optional>
#include <string>

namespace tutti {

/// Options of a ProgressBar.
struct ProgressBarOptions {
  std::int64_t total = 0;  ///< steps of the whole run; 0: unknown
  std::int64_t start = 0;  ///< first step of a resumed run; earlier steps do not count for the rate
  /// The text at the beginning of the line.
  std::string description = "training";
  /// The name of a step in the rate.
  std::string unit = "step";
  /// True: redraw the line in place. False: write a plain line at each interval. Unset: redraw if the stream is a
  /// terminal, NO_COLOR is not set and TERM is not dumb.
  std::optional<bool> in_place{};
  /// The minimum time between two redraws.
  std::chrono::milliseconds interval_in_place = std::chrono::milliseconds(100);
  /// The minimum time between two plain lines.
  std::chrono::milliseconds interval_plain = std::chrono::seconds(10);
  /// The clock, for tests.
  std::function<std::chrono::steady_clock::time_point()> now = std::chrono::steady_clock::now;
};

/// Construct it on the main process only. Not thread safe.
class ProgressBar {
 public:
  /// Writes to standard error, or to `stream`.
  explicit ProgressBar(ProgressBarOptions options);
  /// `stream` must outlive the progress bar.
  ProgressBar(ProgressBarOptions options, std::ostream& stream);
  /// Ends the line.
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  /// `done`: total number of steps done. `postfix`: the text at the end of the line ("loss 1.234").
  void update(std::int64_t done, const std::string& postfix = "");

 private:
  class Line;
  std::unique_ptr<Line> line_;
};

}  // namespace tutti
