#pragma once
// `tutti bench step`: what a training step costs in one process, beside LibTorch's own loop.
#include <string>
#include <vector>

namespace tutti::bench {

/// Returns the exit code: 1 where results are wrong. Not for ranks: a launcher's variables are a UsageError.
int run_step_benchmark(const std::vector<std::string>& words);

}  // namespace tutti::bench
