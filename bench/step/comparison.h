#pragma once
// One thing that a training loop does, as LibTorch does it and as tutti does it.
#include <functional>
#include <string>
#include <vector>

#include "step/options.h"
#include "sync/workload.h"

namespace tutti::bench {

struct Comparison {
  std::string name;
  std::string unit;
  /// Do it a number of times and return how long one took. LibTorch's is empty where it has no such thing.
  std::function<double()> libtorch{};
  std::function<double()> tutti{};
  /// Says what is wrong with the results of both; empty if nothing is.
  std::function<std::string()> check{};
};

/// They are made one after the other, so that only one has its models in memory.
using ComparisonMaker = std::function<Comparison()>;

/// The training loop as it is, and with clipping. `workload` outlives them.
std::vector<ComparisonMaker> loop_comparisons(const Workload& workload);

/// Its parts alone: each optimizer's step, clipping, the accumulate() scope. A call is made `calls` times.
std::vector<ComparisonMaker> part_comparisons(const Workload& workload, int calls);

}  // namespace tutti::bench
