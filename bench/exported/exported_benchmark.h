#pragma once
// `tutti bench exported`: what ExportedModule adds to an operator of its graph.
#include <string>
#include <vector>

namespace tutti::bench {

/// Returns the exit code. Throws UsageError.
int run_exported_benchmark(const std::vector<std::string>& words);

}  // namespace tutti::bench
