#pragma once
// What a rank spends on heartbeats.

namespace tutti::bench {

/// CPU seconds since the process began.
struct CpuTime {
  double heartbeats = 0;  ///< by the threads that send and check heartbeats, and by the one that serves the store
  double all = 0;         ///< by all threads
};

CpuTime cpu_time();

}  // namespace tutti::bench
