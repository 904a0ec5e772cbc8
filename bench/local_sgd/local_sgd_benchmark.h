#pragma once
#include <string>
#include <vector>

namespace tutti::bench {

/// `tutti bench local-sgd WORDS...`. Returns the exit code.
int run_local_sgd_benchmark(const std::vector<std::string>& words);

}  // namespace tutti::bench
