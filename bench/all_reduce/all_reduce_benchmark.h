#pragma once
// `tutti bench all-reduce`: what a sum over the ranks of one node costs, by size, type and number of ranks.
#include <string>
#include <vector>

namespace tutti::bench {

/// Returns the exit code. Started by a launcher, this process is one of the ranks; otherwise it starts them itself.
int run_all_reduce_benchmark(const std::vector<std::string>& words);

}  // namespace tutti::bench
