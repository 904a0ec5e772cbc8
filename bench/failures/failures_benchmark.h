#pragma once
#include <string>
#include <vector>

namespace tutti::bench {

/// `tutti bench failures WORDS...`. Returns the exit code: 1 if a trial named a wrong rank or none.
int run_failures_benchmark(const std::vector<std::string>& words);

}  // namespace tutti::bench
