#pragma once
// The interface of metric trackers. The main process alone constructs and calls trackers, on one thread.
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace tutti {

/// Names and values, in the order of display. '/' separates the parts of a name: "time/rank_0/forward".
using Scalars = std::vector<std::pair<std::string, double>>;
/// Values by name, logged once, at the start of a run.
using Hyperparameters = std::map<std::string, std::variant<bool, std::int64_t, double, std::string>>;

/// Base class of trackers. Derive from it to write your own; only log() must be overridden.
class Tracker {
 public:
  virtual ~Tracker() = default;

  /// Called before any other method, and again where a run of the same process resumes or begins again. `step` is 0, or
  /// the step of the checkpoint that the run resumes from. Values that were logged for later steps are void.
  virtual void start(const std::string& /*run*/, const Hyperparameters& /*hyperparameters*/, std::int64_t /*step*/) {}
  /// Logs the values of optimizer step `step`. A program may log steps in any order. Values may be NaN or infinite.
  virtual void log(std::int64_t step, const Scalars& scalars) = 0;
  /// Logs a text of optimizer step `step`.
  virtual void log_text(std::int64_t /*step*/, const std::string& /*name*/, const std::string& /*text*/) {}
  /// After it returns, all logged values survive a crash of the machine. Accelerator::save_state() calls it.
  virtual void flush() {}
};

}  // namespace tutti
