#pragma once
#include <string>
#include <vector>

namespace tutti::bench {

/// `tutti bench plan WORDS...`: how far `tutti plan` is from steps that are run. Returns the exit code.
int run_plan_check_benchmark(const std::vector<std::string>& words);

}  // namespace tutti::bench
