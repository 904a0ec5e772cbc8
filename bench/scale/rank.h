#pragma once
// One rank of `tutti bench scale`.
#include <string>

#include "scale/options.h"

namespace tutti::bench {

/// CPU seconds of processes.
struct CpuSeconds {
  double all = 0;
  double kernel = 0;  ///< the part in the kernel
};

/// Returns the CPU time of all child processes that have exited.
CpuSeconds cpu_of_children();

/// The resources of a process during training, and the CPU time of its main(), without LibTorch's start and end.
struct ResourceUsage {
  double threads = 0;
  double descriptors = 0;
  double page_tables = 0;  ///< bytes
  double cpu = 0;          ///< seconds of all threads
};

/// Connects to the other ranks, trains with them and appends its usage to options.results. Returns the exit code.
int run_scale_rank(const ScaleOptions& options, const Environment& environment);

/// Reads the usage of `ranks` ranks from `file`. Returns the maximum of each resource and the sum of CPU time. Throws
/// std::runtime_error if a rank's usage is missing.
ResourceUsage read_usage(const std::string& file, int ranks);

}  // namespace tutti::bench
