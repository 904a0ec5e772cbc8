#include "flight/wait_graph.h"

#include <algorithm>
#include <set>
#include <sstream>
#include <utility>

#include "core/describe.h"

namespace tutti::flight {
namespace {

const std::optional<FailureReport>& report_of(const FailureReports& reports, int rank) {
  return reports.at(static_cast<std::size_t>(rank));
}

// Walks from a rank to those it waited for, and on.
class WaitForGraph {
 public:
  explicit WaitForGraph(const FailureReports& reports) : reports_(reports) {}

  void walk(int rank) {
    visited_.insert(rank);
    const auto& report = report_of(reports_, rank);
    if (!report || report->reason == FailureReport::Reason::aborted) {
      failed_ranks_.insert(rank);
      return;
    }
    for (const int next : report->waiting_for) {
      if (next == rank || (report->timed_out() && entered_late(next))) {
        failed_ranks_.insert(next);
      } else if (!visited_.contains(next)) {
        walk(next);
      }
      if (failed_ranks_.contains(next) && !waiting_report_) waiting_report_ = report;
    }
  }

  const std::set<int>& failed_ranks() const { return failed_ranks_; }
  /// The report of a rank that waited for a failed rank directly.
  const std::optional<FailureReport>& waiting_report() const { return waiting_report_; }

 private:
  // A rank that enters the call after others have timed out finds them disconnected and reports them.
  bool entered_late(int rank) const {
    const auto& report = report_of(reports_, rank);
    return report && report->peer_left() &&
           std::all_of(report->waiting_for.begin(), report->waiting_for.end(),
                       [&](int other) { return visited_.contains(other); });
  }

  const FailureReports& reports_;
  std::set<int> visited_;
  std::set<int> failed_ranks_;
  std::optional<FailureReport> waiting_report_;
};

std::string describe_without_failed_rank(const FailureReport& own_report) {
  if (own_report.reason != FailureReport::Reason::heartbeat_lost) return "the connections were closed";
  return "the job's coordinator has not answered for " + describe_duration(own_report.timeout) +
         " (network partition, its host is down, or this process was stopped)";
}

std::string describe_failure(const std::vector<int>& failed_ranks, const FailureReport& waiting_report,
                             const FailureReports& reports, int rank, const JobRanks& job_ranks) {
  const std::string subject = job_ranks.describe(failed_ranks);
  const bool on_device = waiting_report.reason == FailureReport::Reason::device_timeout;
  if (failed_ranks == std::vector<int>{rank} && waiting_report.waiting_for == failed_ranks && on_device) {
    return "the device of this rank (" + std::to_string(job_ranks.of(rank)) + ") did not reach a collective within " +
           describe_duration(waiting_report.timeout);
  }
  if (failed_ranks == std::vector<int>{rank}) {
    return "the other ranks timed out waiting for this rank (" + std::to_string(job_ranks.of(rank)) + ") after " +
           describe_duration(waiting_report.timeout);
  }
  const auto& report = report_of(reports, failed_ranks.front());
  if (report && report->reason == FailureReport::Reason::aborted) return subject + " aborted " + report->description;
  if (waiting_report.reason == FailureReport::Reason::process_stopped) {
    return subject + (failed_ranks.size() == 1 ? " has been stopped for " : " have been stopped for ") +
           describe_duration(waiting_report.timeout) + " (SIGSTOP or Ctrl+Z)";
  }
  if (waiting_report.reason == FailureReport::Reason::heartbeat_lost) {
    return subject + " missed heartbeats for " + describe_duration(waiting_report.timeout) +
           " (host down, network partition, or process stopped)";
  }
  if (waiting_report.reason == FailureReport::Reason::timeout) {
    return subject + " did not enter the call within " + describe_duration(waiting_report.timeout);
  }
  if (on_device) {
    return subject + " did not take part in a collective on the device within " +
           describe_duration(waiting_report.timeout);
  }
  if (waiting_report.reason == FailureReport::Reason::network_lost) {
    return subject + " disconnected (its machine acknowledges nothing: check the network between the two machines)";
  }
  const bool exited = waiting_report.reason == FailureReport::Reason::process_exited;
  return subject + (exited ? " exited" : " disconnected (connection closed)");
}

std::map<int, std::uint64_t> calls_of_members(const std::string& communicator, const WaitState& state,
                                              const std::vector<WaitState>& by_rank) {
  std::map<int, std::uint64_t> calls;
  for (const int member : state.communicators.at(communicator).members) {
    const auto& communicators = by_rank.at(static_cast<std::size_t>(member)).communicators;
    const auto found = communicators.find(communicator);
    calls[member] = found == communicators.end() ? 0 : found->second.calls;
  }
  return calls;
}

}  // namespace

std::string FailureReport::to_text() const {
  std::ostringstream text;
  text << static_cast<int>(reason) << ' ' << operation << ' ' << timeout.count() << ' ' << waiting_for.size();
  for (const int rank : waiting_for) text << ' ' << rank;
  text << ' ' << description;
  return text.str();
}

FailureReport FailureReport::from_text(const std::string& text) {
  std::istringstream stream(text);
  FailureReport report;
  int reason_number = 0;
  std::int64_t milliseconds = 0;
  std::size_t count = 0;
  stream >> reason_number >> report.operation >> milliseconds >> count;
  const bool is_known = reason_number >= 0 && reason_number <= static_cast<int>(Reason::network_lost);
  report.reason = is_known ? static_cast<Reason>(reason_number) : Reason::connection_closed;
  report.timeout = std::chrono::milliseconds(milliseconds);
  for (int rank = 0; count > 0 && stream >> rank; --count) report.waiting_for.push_back(rank);
  stream.ignore(1);
  report.description.assign(std::istreambuf_iterator<char>(stream), {});
  return report;
}

bool is_complete(const FailureReports& reports, int rank, const std::vector<int>& exited) {
  const auto can_publish = [&](int other) {
    const auto reports_exit_of = [&](const std::optional<FailureReport>& report) {
      return report && report->reason == FailureReport::Reason::process_exited &&
             std::ranges::find(report->waiting_for, other) != report->waiting_for.end();
    };
    return std::ranges::find(exited, other) == exited.end() && std::ranges::none_of(reports, reports_exit_of);
  };
  std::set<int> seen;
  std::vector<int> pending{rank};
  while (!pending.empty()) {
    const int next = pending.back();
    pending.pop_back();
    if (!seen.insert(next).second) continue;
    const auto& report = report_of(reports, next);
    if (!report && can_publish(next)) return false;
    if (!report) continue;
    for (const int other : report->waiting_for) {
      if (!report->is_definitive() || report_of(reports, other)) pending.push_back(other);
    }
  }
  return true;
}

RootCause find_root_cause(const FailureReports& reports, int rank, const JobRanks& job_ranks) {
  const FailureReport& own_report = *report_of(reports, rank);
  WaitForGraph graph(reports);
  graph.walk(rank);
  const FailureReport& waiting_report = graph.waiting_report() ? *graph.waiting_report() : own_report;
  RootCause root_cause;
  root_cause.failed_ranks.assign(graph.failed_ranks().begin(), graph.failed_ranks().end());
  // In a cycle each rank waited for another one. Name the ranks that this rank waited for.
  if (root_cause.failed_ranks.empty()) root_cause.failed_ranks = own_report.waiting_for;
  root_cause.timed_out = waiting_report.timed_out();

  std::vector<int> waiting;
  for (std::size_t other = 0; other < reports.size(); ++other) {
    const bool is_failed =
        std::count(root_cause.failed_ranks.begin(), root_cause.failed_ranks.end(), static_cast<int>(other)) > 0;
    const auto& report = reports[other];
    if (report && report->operation == own_report.operation && !is_failed) waiting.push_back(static_cast<int>(other));
  }
  root_cause.message = own_report.description + job_ranks.describe_group() + ": " +
                       (root_cause.failed_ranks.empty()
                            ? describe_without_failed_rank(own_report)
                            : describe_failure(root_cause.failed_ranks, waiting_report, reports, rank, job_ranks));
  if (!waiting.empty()) {
    root_cause.message += "; " + job_ranks.describe(waiting) + (waiting.size() == 1 ? " was" : " were") + " waiting";
  }
  return root_cause;
}

std::vector<int> ranks_without_call(const std::map<int, std::uint64_t>& calls_by_rank, std::uint64_t number) {
  std::vector<int> ranks;
  for (const auto& [rank, calls] : calls_by_rank) {
    if (calls <= number) ranks.push_back(rank);
  }
  return ranks;
}

std::optional<std::string> find_deadlock(const std::vector<WaitState>& by_rank) {
  struct Group {
    WaitState::PendingCall call;
    std::vector<int> ranks;
    std::vector<int> absent;
  };
  std::vector<Group> groups;
  const auto size = static_cast<int>(by_rank.size());
  for (int rank = 0; rank < size; ++rank) {
    const WaitState& state = by_rank[static_cast<std::size_t>(rank)];
    if (state.pending_calls.empty()) return std::nullopt;
    for (const auto& call : state.pending_calls) {
      for (const int member : state.communicators.at(call.communicator).members) {
        if (member < 0 || member >= size) return std::nullopt;
      }
      auto absent = ranks_without_call(calls_of_members(call.communicator, state, by_rank), call.number);
      if (absent.empty()) return std::nullopt;
      const auto same = std::ranges::find(groups, call, &Group::call);
      if (same == groups.end()) {
        groups.push_back({.call = call, .ranks = {rank}, .absent = std::move(absent)});
      } else {
        same->ranks.push_back(rank);
      }
    }
  }
  std::string text = "called on some ranks only: ";
  for (const Group& group : groups) {
    if (&group != &groups.front()) text += "; ";
    const bool one = group.ranks.size() == 1;
    text += describe_ranks(group.ranks) + (one ? " waits" : " wait") + " in " + group.call.text + " of '" +
            group.call.communicator + "', which " + describe_ranks(group.absent) +
            (group.absent.size() == 1 ? " has" : " have") + " not called";
  }
  return text + ". No rank can continue.";
}

}  // namespace tutti::flight
