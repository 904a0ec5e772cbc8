#pragma once
// `tutti bench step`: times a training step in one process, compared with LibTorch's own loop.
#include <string>
#include <vector>

namespace tutti::bench {

/// Returns the exit code: 1 if a result is wrong. Throws UsageError under a launcher.
int run_step_benchmark(const std::vector<std::string>& words);

}  // namespace tutti::bench
