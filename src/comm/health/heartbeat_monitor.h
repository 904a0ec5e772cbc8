#pragma once
// The threads that send heartbeats and detect failed peers, in a job with several nodes.
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/rendezvous/rendezvous.h"

namespace tutti::comm {

struct HeartbeatMonitorOptions {
  int rank = 0;
  std::vector<int> node_of_rank;
  std::chrono::milliseconds heartbeat_timeout{0};
  std::chrono::milliseconds connect_timeout{0};
  std::string host{};  ///< an address of this machine that others reach; may be empty
};

struct FailedPeers {
  std::vector<int> ranks;  ///< global ranks, ascending, that missed heartbeats for the heartbeat timeout
  /// The store has not answered for the heartbeat timeout. `ranks` then holds the ranks of the node that serves it, if
  /// a rank does. No rank of the job can continue.
  bool store = false;
};

/// One for each process and connect. It has two threads. One polls the liveness table and the next process of the node.
/// The other sends requests to the store when it is this rank's turn. A rank that marks a rank as failed publishes that
/// to all ranks. Thread safe.
class HeartbeatMonitor {
 public:
  /// Every rank of the job must make one. Throws TimeoutError, PeerError.
  HeartbeatMonitor(const Rendezvous& rendezvous, const HeartbeatMonitorOptions& options);
  /// Announces a clean exit, so that peers do not report missed heartbeats. Skipped during stack unwinding. The rank
  /// that serves the store waits one heartbeat interval until the others have read it.
  ~HeartbeatMonitor();
  HeartbeatMonitor(const HeartbeatMonitor&) = delete;
  HeartbeatMonitor& operator=(const HeartbeatMonitor&) = delete;

  /// The failed peers. The set only grows.
  FailedPeers failed_peers() const;
  std::chrono::milliseconds heartbeat_timeout() const { return heartbeat_timeout_; }

  /// Global ranks whose processes have exited without an exit announcement, ascending. Connected peers already see
  /// these ranks disconnect; this list only tells callers that no further failure report will come from them.
  std::vector<int> exited_ranks() const;
  /// Makes all local peers poll fast for 1 s. Call after a failure, whose cause may be published already.
  void poll_fast();

  using Callback = std::function<void(const FailedPeers& failed_peers)>;
  /// Calls `callback` from another thread when more peers fail; at once if some have failed. The callback must not call
  /// back into the monitor. Destroying the returned handle unregisters it.
  [[nodiscard]] std::shared_ptr<void> on_failure(Callback callback);

 private:
  struct Shared;
  std::chrono::milliseconds heartbeat_timeout_;
  std::shared_ptr<Shared> shared_;
};

/// The view of a HeartbeatMonitor for a group of some of the job's ranks. Thread safe.
class GroupHealth {
 public:
  /// `monitor` is null where there is one machine. `global_ranks`: the members'.
  GroupHealth(std::shared_ptr<HeartbeatMonitor> monitor, std::vector<int> global_ranks)
      : monitor_(std::move(monitor)), global_ranks_(std::move(global_ranks)) {}

  /// The members among HeartbeatMonitor::exited_ranks(), by their ranks in the group. Polls fast.
  std::vector<int> exited_ranks() const;
  bool is_store_reachable() const { return !monitor_ || !monitor_->failed_peers().store; }
  void poll_fast() const;

  /// Throws TransferError if members have failed.
  void throw_if_heartbeat_lost() const;
  /// Whether the group cannot go on.
  bool affects(const FailedPeers& failed_peers) const {
    return failed_peers.store || !members_among(failed_peers.ranks).empty();
  }

  const std::shared_ptr<HeartbeatMonitor>& monitor() const { return monitor_; }
  const std::vector<int>& global_ranks() const { return global_ranks_; }
  /// Those of `global_ranks` that are members, by their ranks in the group.
  std::vector<int> members_among(const std::vector<int>& global_ranks) const;
  /// That of a group of `members` of this one.
  GroupHealth for_group(const std::vector<int>& members) const;

 private:
  std::shared_ptr<HeartbeatMonitor> monitor_;
  std::vector<int> global_ranks_;
};

}  // namespace tutti::comm
