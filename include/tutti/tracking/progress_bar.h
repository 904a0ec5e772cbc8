#pragma once
// One line that tells how far a run is: share done, rate, time left, loss.
#include <chrono>
#include <cstdint>
#include <functional>
#include <iosfwd>
#include <memory>
#include <optional>
#include <string>

namespace tutti {

/// What a ProgressBar is told.
struct ProgressBarOptions {
  std::int64_t total = 0;  ///< steps of the whole run; 0 where it is not known
  std::int64_t start = 0;  ///< where a resumed run begins: it does not count for the rate
  /// What the line begins with.
  std::string description = "training";
  /// What a step is called in the rate.
  std::string unit = "step";
  /// Redraw the line in place. Unset: where the stream is a terminal and neither NO_COLOR nor TERM=dumb forbids it.
  /// Otherwise a plain line is written from time to time.
  std::optional<bool> in_place{};
  /// The least time between two redraws.
  std::chrono::milliseconds interval_in_place = std::chrono::milliseconds(100);
  /// The least time between two plain lines.
  std::chrono::milliseconds interval_plain = std::chrono::seconds(10);
  /// The clock, for tests.
  std::function<std::chrono::steady_clock::time_point()> now = std::chrono::steady_clock::now;
};

/// Made on the main process only. One thread.
class ProgressBar {
 public:
  /// Writes to standard error, or to `stream`.
  explicit ProgressBar(ProgressBarOptions options);
  /// `stream` is referenced and must outlive this.
  ProgressBar(ProgressBarOptions options, std::ostream& stream);
  /// Ends the line.
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  /// `done` steps in all; `postfix` stands at the line's end ("loss 1.234").
  void update(std::int64_t done, const std::string& postfix = "");

 private:
  class Line;
  std::unique_ptr<Line> line_;
};

}  // namespace tutti
