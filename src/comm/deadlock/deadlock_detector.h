#pragma once
// Finds out that no rank of a job can go on, and tells all of them, instead of letting them wait for their deadlines.
//
// A thread that mostly sleeps looks a few times a second whether the rank waits as it did before. Where it does, it
// leaves word at the job's store; where all ranks have, each reads what the others said, judges (find_deadlock), and
// agrees: only when all have come to the same verdict from the same words, each of them having stood still from its
// word to its agreement, is it certain, for then all stood still at one moment.
#include <memory>
#include <string>
#include <vector>

#include "comm/deadlock/inflight_calls.h"
#include "comm/rendezvous/rendezvous.h"

namespace tutti::comm {

/// One for a process and connect. Thread safe.
class DeadlockDetector {
 public:
  /// Its thread also ends connections to the store that nobody needs, where these may rest.
  DeadlockDetector(const Rendezvous& rendezvous, int rank, int size, bool may_disconnect_store);
  ~DeadlockDetector();
  DeadlockDetector(const DeadlockDetector&) = delete;
  DeadlockDetector& operator=(const DeadlockDetector&) = delete;

  /// A channel to look at, as long as it lives. The first one is that of all ranks.
  std::shared_ptr<InflightCalls> add_communicator(const std::string& communicator, std::vector<int> global_ranks);

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;
};

}  // namespace tutti::comm
