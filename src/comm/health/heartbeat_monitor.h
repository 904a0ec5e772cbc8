#pragma once
// The failed ranks of the job, as the coordinator reports them.
#include <chrono>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/rendezvous/job_events.h"

namespace tutti::comm {

struct HeartbeatMonitorOptions {
  int rank = 0;
  std::vector<int> node_of_rank;
  std::vector<std::string> host_of_rank{};  ///< names of their machines; empty if all ranks are on one
  std::chrono::milliseconds heartbeat_timeout{0};
};

/// One for each connect. Thread safe.
class HeartbeatMonitor {
 public:
  HeartbeatMonitor(std::shared_ptr<JobEvents> events, HeartbeatMonitorOptions options);
  HeartbeatMonitor(const HeartbeatMonitor&) = delete;
  HeartbeatMonitor& operator=(const HeartbeatMonitor&) = delete;

  /// The ranks that have failed in `status`: those that are stopped or unreachable for the heartbeat timeout, or that
  /// exited 1 s ago. A peer that is connected to an exited rank sees at once that the connection is closed. If the
  /// machine of the coordinator does not answer, also the ranks on the node of its owner.
  FailureCauses failed_ranks(const JobStatus& status) const;
  std::chrono::milliseconds heartbeat_timeout() const { return options_.heartbeat_timeout; }
  /// " (on HOST)": the machines of global ranks; empty if all ranks of the job are on one.
  std::string on_hosts(const std::vector<int>& ranks) const;

  /// The events after which the failed ranks differ. They also change without one, at next_change().
  const std::shared_ptr<JobEvents>& events() const { return events_; }

 private:
  void log_late(const coordinator::FailedRanks& late) const;

  const std::shared_ptr<JobEvents> events_;
  const HeartbeatMonitorOptions options_;
  std::shared_ptr<void> log_subscription_;
};

/// The view of a HeartbeatMonitor for a group of some of the job's ranks. Thread safe.
class GroupHealth {
 public:
  /// `global_ranks`: the members'.
  GroupHealth(std::shared_ptr<HeartbeatMonitor> monitor, std::vector<int> global_ranks)
      : monitor_(std::move(monitor)), global_ranks_(std::move(global_ranks)) {}

  /// Throws TransferError if members have failed.
  void throw_if_peers_failed() const;
  /// Why a wait of `call` for a message of `member` cannot end; null if it may. -1 stands for any member.
  std::exception_ptr failure_of(int member, const std::string& call) const;
  /// Whether the member has exited or left.
  bool has_ended(int member) const { return events()->has_ended(global_ranks_.at(static_cast<std::size_t>(member))); }
  /// When it may throw next without a further event; Deadline::max() if it does not.
  Deadline next_change() const { return events()->next_change(); }

  const std::shared_ptr<JobEvents>& events() const { return monitor_->events(); }
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
