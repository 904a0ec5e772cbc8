#pragma once
// One part of a training loop, in LibTorch and in tutti.
#include <functional>
#include <string>
#include <vector>

#include "sync/workload.h"

namespace tutti::bench {

struct Comparison {
  std::string name;
  std::string unit;
  /// Run the part several times and return the time of one run. LibTorch's is empty if it has no such part.
  std::function<double()> libtorch{};
  std::function<double()> tutti{};
  /// Compares both results and returns the difference in words; empty if they are equal.
  std::function<std::string()> check{};
};

/// Creates one comparison at a time, so that only one has its models in memory.
using ComparisonMaker = std::function<Comparison()>;

/// The training loop without and with clipping. `workload` must outlive the comparisons.
std::vector<ComparisonMaker> loop_comparisons(const Workload& workload);

/// The parts alone: each optimizer's step, clipping, the accumulate() scope. A measurement makes `calls` calls.
std::vector<ComparisonMaker> part_comparisons(const Workload& workload, int calls);

}  // namespace tutti::bench
