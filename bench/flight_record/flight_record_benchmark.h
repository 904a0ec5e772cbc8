#pragma once
// `tutti bench flight-record`: the time to record an operation in the flight record.
#include <string>
#include <vector>

namespace tutti::bench {

/// Returns the exit code. Throws UsageError.
int run_flight_record_benchmark(const std::vector<std::string>& words);

}  // namespace tutti::bench
