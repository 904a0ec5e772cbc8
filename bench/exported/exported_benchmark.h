#pragma once
// `tutti bench exported`: the overhead of ExportedModule for each operator of its graph.
#include <string>
#include <vector>

namespace tutti::bench {

/// Returns the exit code. Throws UsageError.
int run_exported_benchmark(const std::vector<std::string>& words);

}  // namespace tutti::bench
