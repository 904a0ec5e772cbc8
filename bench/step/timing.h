#pragma once
// Times calls, in the unit of a std::chrono::duration.
#include <chrono>
#include <ratio>

namespace tutti::bench {

using Milliseconds = std::chrono::duration<double, std::milli>;
using Nanoseconds = std::chrono::duration<double, std::nano>;

/// Makes `calls` calls and returns the mean time of one.
template <typename Unit, typename Call>
double time_of_one(int calls, Call&& call) {
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < calls; ++i) call();
  return Unit(std::chrono::steady_clock::now() - start).count() / calls;
}

}  // namespace tutti::bench
