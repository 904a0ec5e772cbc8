#pragma once
// Where a run's numbers go. Trackers are made and called on the main process only. One thread.
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace tutti {

/// Name and value, in the order in which they are shown. Names may have parts: "time/rank_0/forward".
using Scalars = std::vector<std::pair<std::string, double>>;
/// By name; written down once, at the start of a run.
using Hyperparameters = std::map<std::string, std::variant<bool, std::int64_t, double, std::string>>;

/// A user's own tracker derives from this one and overrides what it needs.
class Tracker {
 public:
  virtual ~Tracker() = default;

  /// Once, before anything else. `step` is 0, or the step of the checkpoint that the run goes on from: what was logged
  /// for later steps is void.
  virtual void start(const std::string& /*run*/, const Hyperparameters& /*hyperparameters*/, std::int64_t /*step*/) {}
  /// The values of optimizer step `step`; steps do not decrease. NaN and infinity are values.
  virtual void log(std::int64_t step, const Scalars& scalars) = 0;
  /// A text of optimizer step `step`.
  virtual void log_text(std::int64_t /*step*/, const std::string& /*name*/, const std::string& /*text*/) {}
  /// Makes sure that what was logged survives a crash of the process.
  virtual void flush() {}
};

}  // namespace tutti
