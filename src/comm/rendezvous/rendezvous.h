#pragma once
// How the ranks of a job meet: at the coordinator (coordinator/client.h).
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "comm/backend/transfer_error.h"
#include "comm/rendezvous/coordinator_place.h"
#include "comm/rendezvous/job_connection.h"
#include "core/job_secret.h"
#include "tutti/core/environment.h"

namespace tutti::comm {

/// A group's part of the job's coordinator. Copies share it.
struct Rendezvous {
  std::shared_ptr<JobConnection> job{};
  std::string group{};         ///< its name at the coordinator
  std::vector<int> members{};  ///< global ranks
};

struct JobRendezvous {
  Rendezvous rendezvous;
  std::vector<std::string> values;  ///< by rank
};

/// Joins the job, publishes `value` and waits for the values of the other ranks. `secret` is that of the job, or null.
/// Throws UsageError (port in use, a rank that the coordinator refuses) and TimeoutError (the coordinator is
/// unreachable, or the named ranks did not join).
JobRendezvous join_job(const Environment& environment, const JobSecretPtr& secret, const std::string& value,
                       const CoordinatorOptions& options);

/// The same for ranks that share `store` and nothing else. Rank 0 runs the coordinator at `host`.
Rendezvous join_at_store(const c10::intrusive_ptr<c10d::Store>& store, int rank, const std::string& host,
                         const std::string& node, const JobSecretPtr& secret, const CoordinatorOptions& options);

/// The same for the coordinator at `place`. `group` is equal on all ranks.
Rendezvous join_at_place(CoordinatorPlace place, int rank, const std::string& group, const std::string& node,
                         const CoordinatorOptions& options);

/// The part of `rendezvous` that belongs to the group called `name`, whose ranks are `members` of the old group.
Rendezvous rendezvous_of_group(const Rendezvous& rendezvous, const std::string& name, const std::vector<int>& members);

/// Publishes `value` for the other ranks of a group and waits for theirs, which it returns by rank. `topic` is the same
/// on all of them, and new to the group. Throws TimeoutError naming the ranks that did not call it, and PeerError.
std::vector<std::string> coordinator_all_gather(const Rendezvous& rendezvous, const std::string& topic, int rank,
                                                const std::string& value, std::chrono::milliseconds timeout);

/// The failure reports of a group.
std::shared_ptr<FailureBoard> make_coordinator_failure_board(const Rendezvous& rendezvous);

}  // namespace tutti::comm
