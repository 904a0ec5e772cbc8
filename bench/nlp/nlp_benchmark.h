#pragma once
// `tutti bench nlp`: the table of Accelerate's guide on gradient synchronization with the guide's kind of model, BERT
// for pairs of sentences. C++ trains an exported program; Python trains the original.
#include <string>
#include <vector>

namespace tutti::bench {

/// Runs the benchmark with the arguments after its name and returns its exit code. Throws UsageError.
int run_nlp_benchmark(const std::vector<std::string>& words);

}  // namespace tutti::bench
