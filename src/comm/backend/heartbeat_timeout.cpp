#include "comm/backend/heartbeat_timeout.h"

#include <cmath>
#include <cstdint>
#include <sstream>
#include <string>

#include "core/launchers.h"
#include "tutti/core/error.h"

namespace tutti::comm {

std::chrono::milliseconds heartbeat_timeout() {
  const auto variable = process_variable("TUTTI_HEARTBEAT_TIMEOUT");
  if (!variable) return std::chrono::milliseconds(1500);
  std::istringstream text(*variable);
  double seconds = 0;
  if (!(text >> seconds) || !text.eof() || !(seconds > 0) || seconds > 1e9) {
    throw UsageError("TUTTI_HEARTBEAT_TIMEOUT=" + *variable + ": a positive number of seconds is needed.");
  }
  return std::chrono::milliseconds(static_cast<std::int64_t>(std::ceil(seconds * 1000)));
}

}  // namespace tutti::comm
