#include "comm/backend/failure_timeouts.h"

#include <cmath>
#include <cstdint>
#include <sstream>
#include <string>

#include "core/describe.h"
#include "core/launchers.h"
#include "core/variables.h"
#include "tutti/core/error.h"

namespace tutti::comm {
namespace {

constexpr double max_seconds = 1e9;

std::chrono::milliseconds seconds_in(const std::string& variable, const std::string& value, bool may_be_zero) {
  std::istringstream text(value);
  double seconds = 0;
  const bool is_number = text >> seconds && text.eof();
  if (!is_number || !(may_be_zero ? seconds >= 0 : seconds > 0) || seconds > max_seconds) {
    throw UsageError(variable + "=" + value + ": a " +
                     (may_be_zero ? "number of seconds, not negative," : "positive number of seconds") + " is needed.");
  }
  return std::chrono::milliseconds(static_cast<std::int64_t>(std::ceil(seconds * 1000)));
}

}  // namespace

std::chrono::milliseconds heartbeat_timeout(const CommunicatorOptions& options) {
  constexpr const char* name = "TUTTI_HEARTBEAT_TIMEOUT";
  if (options.heartbeat_timeout <= std::chrono::milliseconds::zero()) {
    throw UsageError("CommunicatorOptions: heartbeat_timeout must be positive, not " +
                     describe_duration(options.heartbeat_timeout) + ".");
  }
  const auto variable = VariableReader(&process_variable).text(name);
  if (!variable || options.heartbeat_timeout != CommunicatorOptions().heartbeat_timeout) {
    return options.heartbeat_timeout;
  }
  return seconds_in(name, *variable, /*may_be_zero=*/false);
}

std::chrono::milliseconds deadlock_timeout(const CommunicatorOptions& options) {
  constexpr const char* name = "TUTTI_DEADLOCK_TIMEOUT";
  if (options.deadlock_timeout < std::chrono::milliseconds::zero()) {
    throw UsageError("CommunicatorOptions: deadlock_timeout must not be negative, but is " +
                     describe_duration(options.deadlock_timeout) + ".");
  }
  const auto variable = VariableReader(&process_variable).text(name);
  if (!variable || options.deadlock_timeout != CommunicatorOptions().deadlock_timeout) return options.deadlock_timeout;
  return seconds_in(name, *variable, /*may_be_zero=*/true);
}

}  // namespace tutti::comm
