#pragma once
// How processes find one another: a key-value store that rank 0 (or the launcher's agent) serves.
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "comm/backend/transfer_error.h"
#include "core/job_secret.h"
#include "tutti/core/environment.h"

namespace tutti::comm {

/// Connections to the job's store. Copies share them.
struct Rendezvous {
  c10::intrusive_ptr<c10d::Store> store;
  /// A connection of its own, so that failures can be posted while another thread waits on `store`.
  c10::intrusive_ptr<c10d::Store> failure_store;
  /// The rank that serves the store; -1 where the launcher's agent does.
  int store_owner = -1;
  /// What ranks prove to one another; null where there is none, and on one node.
  JobSecretPtr secret{};
};

struct JobRendezvous {
  Rendezvous rendezvous;
  std::vector<std::string> values;  ///< by rank
};

/// Finds the job's store, leaves `value` there for the other ranks and waits for theirs. Throws UsageError (port in
/// use) and TimeoutError (the store is unreachable, or the named ranks did not join).
JobRendezvous join_job(const Environment& environment, const std::string& value, std::chrono::milliseconds timeout);

/// The part of `rendezvous` that belongs to the group called `name`, whose ranks are `members` of the old group.
Rendezvous rendezvous_of_group(const Rendezvous& rendezvous, const std::string& name, const std::vector<int>& members);

/// Closes connections that were idle for 300 ms; the next request connects again. Has an effect only if all ranks are
/// on one machine, and not on the rank that serves the store.
void drop_idle_connections(const Rendezvous& rendezvous);

/// Waits until all ranks have called it, at most 2 s, so that the rank that serves the store does not close it before
/// the others have read it. For a job that fails before it starts.
void leave_barrier(const Rendezvous& rendezvous, int rank, int size) noexcept;

/// Leaves `value` for the other ranks of a group and waits for theirs, which it returns by rank. `topic` is the same on
/// all of them, and new to the group. A rank asks the store five times (the last one seven), however many there are.
/// Throws TimeoutError naming the ranks that did not join, and PeerError, also soon after `is_aborted` returns true.
std::vector<std::string> store_all_gather(const Rendezvous& rendezvous, const std::string& topic, int rank, int size,
                                          const std::string& value, std::chrono::milliseconds timeout,
                                          const std::function<bool()>& is_aborted = nullptr);

/// What is known elsewhere of a group's ranks and of the store.
struct PeerStatusSource {
  std::function<std::vector<int>()>
      exited_ranks;                          ///< ranks whose processes have ended; nothing is known of it where unset
  std::function<bool()> is_store_reachable;  ///< it does where unset
};
std::shared_ptr<FailureBoard> make_store_failure_board(const Rendezvous& rendezvous, int size,
                                                       PeerStatusSource status_source = {});

}  // namespace tutti::comm
