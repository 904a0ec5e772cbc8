#pragma once
// What a rank spends on signs of life and on looking for those of others.

namespace tutti::bench {

/// CPU seconds since the process began.
struct CpuSpent {
  double watching = 0;  ///< by the threads that give and look for signs of life, and by the one that serves the store
  double all = 0;       ///< by all threads
};

CpuSpent cpu_spent();

}  // namespace tutti::bench
