#pragma once
// The text of a progress line, and its rate. Pure: state, times and a width in, text out.
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace tutti {

/// Steps per second, exponentially smoothed over time: what is half a minute old weighs 1/e.
class SmoothedRate {
 public:
  void add(std::int64_t steps, double seconds);
  /// Unset before there is anything to tell it from.
  std::optional<double> per_second() const;

 private:
  // Both sums forget alike, so that their quotient is unbiased from the first step on.
  double steps_ = 0;
  double seconds_ = 0;
};

struct ProgressState {
  std::string description{};
  std::string unit{};
  std::string postfix{};
  std::int64_t done = 0;
  std::int64_t total = 0;  ///< 0: not known
  std::chrono::seconds elapsed{};
  std::optional<double> rate{};  ///< steps per second
};

/// "1:05", "2:03:07", "3d 04:00:00".
std::string format_duration(std::chrono::seconds duration);
/// "12.3 step/s", or "2.5 s/step" where that reads better.
std::string format_rate(double per_second, const std::string& unit);
/// At most `width` columns, without line end. What does not fit is left out: first the bar, then the rest from its end.
std::string progress_line(const ProgressState& state, std::size_t width);
/// Columns that the text takes, counting each character of it as one.
std::size_t columns(const std::string& text);

}  // namespace tutti
