#pragma once
// The text of a progress line, and its rate. No I/O.
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace tutti {

/// Steps per second, smoothed exponentially over time: a step of 30 s ago has the weight 1/e.
class SmoothedRate {
 public:
  void add(std::int64_t steps, double seconds);
  /// Unset until two steps are known.
  std::optional<double> per_second() const;

 private:
  // Both sums decay equally, so their quotient is unbiased from the first step on.
  double steps_ = 0;
  double seconds_ = 0;
};

struct ProgressState {
  std::string description{};
  std::string unit{};
  std::string postfix{};
  std::int64_t done = 0;
  std::int64_t total = 0;  ///< 0: unknown
  std::chrono::seconds elapsed{};
  std::optional<double> rate{};  ///< steps per second
};

/// "1:05", "2:03:07", "3d 04:00:00".
std::string format_duration(std::chrono::seconds duration);
/// "12.3 step/s", or "2.5 s/step" for slow steps.
std::string format_rate(double per_second, const std::string& unit);
/// At most `width` columns, without a line end. If it does not fit, first the bar and then the end of the text are left
/// out.
std::string progress_line(const ProgressState& state, std::size_t width);
/// The number of columns of the text; each character counts as one.
std::size_t columns(const std::string& text);

}  // namespace tutti
