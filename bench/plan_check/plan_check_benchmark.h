#pragma once
#include <string>
#include <vector>

namespace tutti::bench {

/// `tutti bench plan WORDS...`: compares the predictions of `tutti plan` with measured steps. Returns the exit code.
int run_plan_check_benchmark(const std::vector<std::string>& words);

}  // namespace tutti::bench
