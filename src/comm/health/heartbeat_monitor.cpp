#include "comm/health/heartbeat_monitor.h"

#include <algorithm>
#include <optional>
#include <set>

#include "comm/backend/failure_timeouts.h"
#include "core/describe.h"
#include "core/log_without_waiting.h"
#include "tutti/core/error.h"

namespace tutti::comm {

HeartbeatMonitor::HeartbeatMonitor(std::shared_ptr<JobEvents> events, HeartbeatMonitorOptions options)
    : events_(std::move(events)), options_(std::move(options)) {
  log_subscription_ = events_->subscribe({.on_failed = [this](const coordinator::FailedRanks& event) {
    if (event.is_warning) log_late(event);
  }});
}

FailureCauses HeartbeatMonitor::failed_ranks(const JobStatus& status) const {
  FailureCauses failed = status.failed;
  const int owner = status.is_coordinator_unreachable ? events_->owner() : -1;
  for (int rank = 0; owner >= 0 && rank < static_cast<int>(options_.node_of_rank.size()); ++rank) {
    const auto node_of = [this](int one) { return options_.node_of_rank[static_cast<std::size_t>(one)]; };
    if (node_of(rank) == node_of(owner) && rank != options_.rank) failed.emplace(rank, coordinator::Cause::unreachable);
  }
  return failed;
}

std::string HeartbeatMonitor::on_hosts(const std::vector<int>& ranks) const {
  if (options_.host_of_rank.empty()) return "";
  std::set<std::string> hosts;
  for (const int rank : ranks) hosts.insert(options_.host_of_rank.at(static_cast<std::size_t>(rank)));
  std::string text;
  for (const std::string& host : hosts) text += (text.empty() ? " (on " : ", ") + host;
  return text + ")";
}

// The lowest rank that is not late logs it.
void HeartbeatMonitor::log_late(const coordinator::FailedRanks& late) const {
  const auto is_late = [&](int rank) { return std::ranges::find(late.ranks, rank) != late.ranks.end(); };
  int lowest = 0;
  while (is_late(lowest)) ++lowest;
  if (options_.rank != lowest) return;
  const bool is_stopped = late.cause == coordinator::Cause::stopped;
  const auto text = describe_ranks(late.ranks) + on_hosts(late.ranks) + (late.ranks.size() > 1 ? " have" : " has") +
                    " missed heartbeats for " + describe_duration(report_delay) +
                    (is_stopped ? " (SIGSTOP or Ctrl+Z)" : " (host down, or network partition)") +
                    ". This is a failure after " + describe_duration(options_.heartbeat_timeout) +
                    " (CommunicatorOptions::heartbeat_timeout).";
  warn_without_waiting(Logger(options_.rank), text);  // this thread sends the heartbeats
}

void GroupHealth::throw_if_peers_failed() const {
  if (!events()->has_failed()) return;
  const auto status = events()->status();
  const auto causes = monitor_->failed_ranks(status);
  const auto members_failed_by = [&](std::optional<coordinator::Cause> which) {
    std::vector<int> ranks;
    for (const auto& [rank, cause] : causes) {
      if (!which || cause == which) ranks.push_back(rank);
    }
    return members_among(ranks);
  };
  const auto failed = members_failed_by(std::nullopt);
  if (failed.empty() && !status.is_coordinator_lost) return;
  // An exit may be the cause of other failures.
  if (const auto exited = members_failed_by(coordinator::Cause::exited); !exited.empty()) {
    throw TransferError(TransferError::Kind::process_exited, exited, "process exited");
  }
  const bool are_stopped = !failed.empty() && members_failed_by(coordinator::Cause::stopped) == failed;
  throw TransferError(are_stopped ? TransferError::Kind::process_stopped : TransferError::Kind::heartbeat_lost, failed,
                      "missed heartbeats", monitor_->heartbeat_timeout());
}

std::exception_ptr GroupHealth::failure_of(int member, const std::string& call) const {
  if (!events()->has_failed()) return nullptr;
  const auto status = events()->status();
  const auto causes = monitor_->failed_ranks(status);
  const int rank = member < 0 ? member : global_ranks_.at(static_cast<std::size_t>(member));
  if (const auto found = causes.find(rank); found != causes.end()) {
    const std::string text = call + ": rank " + std::to_string(rank) + monitor_->on_hosts({rank});
    if (found->second == coordinator::Cause::exited) {
      return std::make_exception_ptr(PeerError(text + " exited", {member}));
    }
    const bool is_stopped = found->second == coordinator::Cause::stopped;
    return std::make_exception_ptr(
        TimeoutError(text + (is_stopped ? " has been stopped for " : " missed heartbeats for ") +
                         describe_duration(monitor_->heartbeat_timeout()) +
                         (is_stopped ? " (SIGSTOP or Ctrl+Z)" : " (host down, or network partition)"),
                     {member}));
  }
  if (!status.is_coordinator_lost) return nullptr;
  return std::make_exception_ptr(
      PeerError(call + ": " + events()->lost_reason().value_or("the coordinator is lost"), {}));
}

GroupHealth GroupHealth::for_group(const std::vector<int>& members) const {
  std::vector<int> global_ranks;
  for (const int member : members) global_ranks.push_back(global_ranks_.at(static_cast<std::size_t>(member)));
  return {monitor_, std::move(global_ranks)};
}

std::vector<int> GroupHealth::members_among(const std::vector<int>& global_ranks) const {
  std::vector<int> members;
  for (std::size_t rank = 0; rank < global_ranks_.size(); ++rank) {
    if (std::ranges::find(global_ranks, global_ranks_[rank]) != global_ranks.end())
      members.push_back(static_cast<int>(rank));
  }
  return members;
}

}  // namespace tutti::comm
