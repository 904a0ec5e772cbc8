#pragma once
// `tutti bench nlp`: the table of Accelerate's guide on gradient synchronization with the kind of model that it was
// made with, BERT for pairs of sentences: trained in C++ from an exported program, and in Python.
#include <string>
#include <vector>

namespace tutti::bench {

/// Runs the benchmark with what follows its name and returns its exit code. Throws UsageError.
int run_nlp_benchmark(const std::vector<std::string>& words);

}  // namespace tutti::bench
