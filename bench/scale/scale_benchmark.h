#pragma once
#include <string>
#include <vector>

namespace tutti::bench {

/// `tutti bench scale WORDS...`. Returns the exit code.
int run_scale_benchmark(const std::vector<std::string>& words);

}  // namespace tutti::bench
