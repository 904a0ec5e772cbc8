#pragma once
// `tutti bench all-reduce`: the time of a sum over the ranks of one node, by size, dtype and number of ranks.
#include <string>
#include <vector>

namespace tutti::bench {

/// Returns the exit code. A process that a launcher started is one of the ranks; any other process starts the ranks.
int run_all_reduce_benchmark(const std::vector<std::string>& words);

}  // namespace tutti::bench
