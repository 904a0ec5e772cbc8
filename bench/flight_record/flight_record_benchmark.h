#pragma once
// `tutti bench flight-record`: what writing an operation down costs a rank.
#include <string>
#include <vector>

namespace tutti::bench {

/// Returns the exit code. Throws UsageError.
int run_flight_record_benchmark(const std::vector<std::string>& words);

}  // namespace tutti::bench
