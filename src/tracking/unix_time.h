#pragma once
// The time of an event.
#include <chrono>

namespace tutti {

/// Seconds since 1970.
inline double unix_time() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace tutti
