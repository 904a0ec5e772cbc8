#pragma once
// Converts the times of getrusage() to seconds.
#include <sys/time.h>

namespace tutti::bench {

inline double seconds_of(const timeval& time) {
  constexpr double microsecond = 1e-6;
  return static_cast<double>(time.tv_sec) + microsecond * static_cast<double>(time.tv_usec);
}

}  // namespace tutti::bench
