#pragma once
// The CPU time that a rank uses for heartbeats.

namespace tutti::bench {

/// CPU seconds since the start of the process.
struct CpuTime {
  double heartbeats = 0;  ///< of the threads that send and check heartbeats, and of the one that runs the coordinator
  double all = 0;         ///< of all threads
};

CpuTime cpu_time();

}  // namespace tutti::bench
