#pragma once
// A coordinator and its ranks as processes without tensors. They note what they were told in shared memory.
#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <vector>

namespace tutti::bench {

struct IdleJobOptions {
  int ranks = 64;
  bool has_secret = true;
  int heartbeat_timeout_ms = 2000;
};

/// Of one rank. Other processes read it, so it has no pointers.
struct IdleRank {
  std::atomic<bool> is_connected = false;
  std::atomic<int> events = 0;            ///< failures that the rank was told of
  std::atomic<int> failed_rank = -1;      ///< the first rank of the last failure
  std::atomic<std::int64_t> told_at = 0;  ///< nanoseconds of the monotonic clock
};

/// Forks the processes; the destructor kills them. The calling process must have no threads of its own.
class IdleJob {
 public:
  /// Returns when all ranks are connected. Throws std::runtime_error if they are not within 60 s.
  explicit IdleJob(const IdleJobOptions& options);
  ~IdleJob();
  IdleJob(const IdleJob&) = delete;
  IdleJob& operator=(const IdleJob&) = delete;

  /// Sends `signal` to a rank. Returns the milliseconds until each other rank was told of its failure; fewer values
  /// than ranks if some were not told within 10 s or were told of another rank.
  std::vector<double> fail(int rank, int signal);
  /// The milliseconds of CPU time of all ranks, and of the coordinator.
  double cpu_of_ranks() const;
  double cpu_of_coordinator() const;

 private:
  struct Board;
  int ranks_;
  Board* board_;
  pid_t coordinator_ = -1;
  std::vector<pid_t> processes_;  // by rank
};

}  // namespace tutti::bench
