#pragma once
// `tutti bench sync`: what gradient synchronization costs under accumulation, by system and by how the loop is
// annotated.
#include <string>
#include <vector>

namespace tutti::bench {

/// Returns the exit code. Started by a launcher, this process is one of the ranks; otherwise it starts them itself.
int run_sync_benchmark(const std::vector<std::string>& words);

}  // namespace tutti::bench
