#pragma once
// `tutti bench sync`: times gradient synchronization under accumulation, by system and by annotation of the loop.
#include <string>
#include <vector>

namespace tutti::bench {

/// Returns the exit code. A process that a launcher started is one of the ranks; any other process starts the ranks.
int run_sync_benchmark(const std::vector<std::string>& words);

}  // namespace tutti::bench
