#pragma once
// Detects deadlocks: no rank of the job can continue. All ranks then throw, instead of waiting for their deadlines.
//
// A thread polls a few times a second whether the rank is blocked in the same calls as before. If so, it publishes the
// rank's wait state in the job's store. When all ranks have published, each rank reads all states and evaluates them
// (find_deadlock). Rank 0 logs a deadlock that lasts.
//
// A thread that has not made a call yet is not part of the states, and may make the missing call. So a rank publishes
// its agreement only when it has been blocked for the deadlock timeout and no thread of the program has used CPU time
// meanwhile (thread_times.h). A deadlock is certain when all ranks agree on the same states: each rank was blocked from
// its publication to its agreement, so all ranks were blocked at the same time.
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "comm/deadlock/inflight_calls.h"
#include "comm/rendezvous/rendezvous.h"

namespace tutti::comm {

struct DeadlockDetectorOptions {
  int rank = 0;
  int size = 0;
  std::chrono::milliseconds timeout{0};  ///< CommunicatorOptions::deadlock_timeout; 0: a deadlock is only logged
  bool may_disconnect_store = false;     ///< whether the thread also closes idle connections to the store
};

/// One for each call of Communicator::connect() in a process. Thread safe.
class DeadlockDetector {
 public:
  DeadlockDetector(const Rendezvous& rendezvous, const DeadlockDetectorOptions& options);
  ~DeadlockDetector();
  DeadlockDetector(const DeadlockDetector&) = delete;
  DeadlockDetector& operator=(const DeadlockDetector&) = delete;

  /// Adds a communicator, which the detector watches until the returned object is destroyed. The first one must be the
  /// communicator of all ranks.
  std::shared_ptr<InflightCalls> add_communicator(const std::string& communicator, std::vector<int> global_ranks);

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;
};

}  // namespace tutti::comm
