#pragma once
#include <chrono>

namespace tutti::coordinator {

using Time = std::chrono::steady_clock::time_point;
using Milliseconds = std::chrono::milliseconds;

inline Time current_time() {
  return std::chrono::steady_clock::now();
}

/// Rounded up, for functions that wait.
inline Milliseconds time_until(Time end) {
  return std::chrono::ceil<Milliseconds>(end - current_time());
}

}  // namespace tutti::coordinator
