#pragma once
// The division of a run into a warm-up and a rest, which most schedules share.
#include <cstdint>
#include <string>

#include "tutti/core/error.h"

namespace tutti {

/// Throws UsageError "<schedule>: <what>" unless `condition` holds.
inline void require_argument(bool condition, const char* schedule, const std::string& what) {
  if (!condition) throw UsageError(std::string(schedule) + ": " + what);
}

/// "<name> is <value>".
template <typename Number>
std::string value_of(const char* name, Number value) {
  return std::string(name) + " is " + std::to_string(value);
}

/// Throws UsageError for a negative warm-up.
void check_warmup(const char* schedule, std::int64_t warmup_steps);

/// The linear rise from 0 for positions before `warmup_steps`; 1 without a warm-up.
double warmup_factor(std::int64_t position, std::int64_t warmup_steps);

/// A run with a warm-up.
class RunSpan {
 public:
  /// Throws UsageError unless 0 <= warmup_steps <= total_steps and total_steps > 0.
  RunSpan(const char* schedule, std::int64_t warmup_steps, std::int64_t total_steps);

  bool warming_up(std::int64_t position) const { return position < warmup_steps_; }
  double warmup(std::int64_t position) const { return warmup_factor(position, warmup_steps_); }
  /// The fraction of the rest that has passed: 0 at the end of the warm-up, 1 at the end of the run and later.
  double progress(std::int64_t position) const;

 private:
  std::int64_t warmup_steps_;
  std::int64_t total_steps_;
};

}  // namespace tutti
