#pragma once
// The threads of a job of several machines that give signs of life and watch over others for all.
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
  std::vector<int> ranks;  ///< of the job, ascending: not heard of for long
  /// The store has not answered for long. Then `ranks` are those of the machine that serves it, where a rank does; and
  /// nobody can go on, with them or without.
  bool store = false;
};

/// One for a process and connect. Two threads: one listens to what the crew knows and looks at the next process on the
/// node, the other one asks the store where that is this rank's turn. Whoever gives a rank up tells all others. Thread
/// safe.
class HeartbeatMonitor {
 public:
  /// Every rank of the job must make one. Throws TimeoutError, PeerError.
  HeartbeatMonitor(const Rendezvous& rendezvous, const HeartbeatMonitorOptions& options);
  /// Says good-bye, so that nobody minds the silence; not where an exception is the reason. Who serves the store waits
  /// for a moment until the others have heard it.
  ~HeartbeatMonitor();
  HeartbeatMonitor(const HeartbeatMonitor&) = delete;
  HeartbeatMonitor& operator=(const HeartbeatMonitor&) = delete;

  /// What has been given up. It only grows.
  FailedPeers failed_peers() const;
  std::chrono::milliseconds heartbeat_timeout() const { return heartbeat_timeout_; }

  /// Ranks of the job whose processes have ended without a good-bye, ascending. They are not waited for in vain where
  /// they are connected to: this only tells that they have left all the word that they had.
  std::vector<int> exited_ranks() const;
  /// The whole crew looks more often for a second: something has gone wrong, and it may be told already why.
  void poll_fast();

  using Callback = std::function<void(const FailedPeers& failed_peers)>;
  /// Calls `callback` from another thread whenever something is given up; at once where something was. It must not ask
  /// this pulse. Not any more when what is returned is gone.
  [[nodiscard]] std::shared_ptr<void> on_failure(Callback callback);

 private:
  struct Shared;
  std::chrono::milliseconds heartbeat_timeout_;
  std::shared_ptr<Shared> shared_;
};

/// A pulse as a group of some of the job's ranks sees it. Thread safe.
class GroupHealth {
 public:
  /// `monitor` is null where there is one machine. `global_ranks`: the members'.
  GroupHealth(std::shared_ptr<HeartbeatMonitor> monitor, std::vector<int> global_ranks)
      : monitor_(std::move(monitor)), global_ranks_(std::move(global_ranks)) {}

  /// The members among HeartbeatMonitor::exited_ranks(), by their ranks in the group. Hurries.
  std::vector<int> exited_ranks() const;
  bool is_store_reachable() const { return !monitor_ || !monitor_->failed_peers().store; }
  void poll_fast() const;

  /// Throws TransferError where members have been given up.
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
