#pragma once
// Detects deadlocks: no rank of the job can continue. All ranks then throw, instead of waiting for their deadlines.
//
// A thread polls a few times a second whether the rank is blocked in the same calls as before. If so, it tells the
// coordinator, which evaluates the states of all ranks (find_deadlock). Rank 0 logs a deadlock that lasts.
//
// A thread that has not made a call yet is not part of the states, and may make the missing call. So a rank agrees only
// when it has been blocked for the deadlock timeout and no thread of the program has used CPU time meanwhile
// (thread_times.h). A deadlock is certain when all ranks agree on the same states: each rank was blocked from its
// statement to its agreement, so all ranks were blocked at the same time.
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "comm/deadlock/inflight_calls.h"
#include "comm/rendezvous/rendezvous.h"

namespace tutti::comm {

struct DeadlockDetectorOptions {
  int rank = 0;
  std::chrono::milliseconds timeout{0};  ///< CommunicatorOptions::deadlock_timeout; 0: a deadlock is only logged
};

/// One for each call of Communicator::connect() in a process; those to one job share their thread. Thread safe.
class DeadlockDetector {
 public:
  DeadlockDetector(const Rendezvous& rendezvous, const DeadlockDetectorOptions& options);
  DeadlockDetector(const DeadlockDetector&) = delete;
  DeadlockDetector& operator=(const DeadlockDetector&) = delete;

  /// Adds a communicator, which the detector watches until the returned object is destroyed.
  std::shared_ptr<InflightCalls> add_communicator(const std::string& communicator, std::vector<int> global_ranks);

 private:
  class Shared;
  static std::shared_ptr<Shared> shared_of(const Rendezvous& rendezvous, const DeadlockDetectorOptions& options);

  std::shared_ptr<Shared> shared_;
  std::string suffix_;  // of communicators' names: each connect has a communicator called "job"
};

}  // namespace tutti::comm
