#pragma once
// Detects deadlocks: no rank of the job can continue. All ranks then throw, instead of waiting for their deadlines.
//
// A thread polls a few times a second whether the rank is blocked in the same calls as before. If so, it publishes the
// rank's wait state in the job's store. When all ranks have published, each rank reads all states, evaluates them
// (find_deadlock), and publishes its agreement. A deadlock is certain only when all ranks agree on the same states, and
// each rank was blocked from its publication to its agreement: then all ranks were blocked at the same time.
#include <memory>
#include <string>
#include <vector>

#include "comm/deadlock/inflight_calls.h"
#include "comm/rendezvous/rendezvous.h"

namespace tutti::comm {

/// One for each call of Communicator::connect() in a process. Thread safe.
class DeadlockDetector {
 public:
  /// If `may_disconnect_store`, its thread also closes idle connections to the store.
  DeadlockDetector(const Rendezvous& rendezvous, int rank, int size, bool may_disconnect_store);
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
