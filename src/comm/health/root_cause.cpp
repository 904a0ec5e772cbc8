#include "comm/health/root_cause.h"

#include <algorithm>
#include <utility>

#include "comm/backend/describe.h"

namespace tutti::comm {
namespace {

constexpr auto query_timeout = std::chrono::milliseconds(700);  // an exited rank is named within a second
constexpr auto query_timeout_if_unreachable = std::chrono::milliseconds(100);
constexpr auto answer_timeout = std::chrono::milliseconds(100);

// Ranks that the group does not have are left out.
FailureReport report_of_peer(const std::string& text, std::size_t size) {
  auto report = FailureReport::from_text(text);
  std::erase_if(report.waiting_for, [&](int rank) { return rank < 0 || std::cmp_greater_equal(rank, size); });
  return report;
}

}  // namespace

FailureReport make_report(const TransferError& error, const Operation& operation) {
  return {.reason = error.kind(),
          .operation = operation.number,
          .timeout = error.waited().value_or(operation.timeout),
          .waiting_for = error.peers(),
          .description = operation.describe()};
}

RootCauseQuery::RootCauseQuery(PeerHealth& health, int rank, int size, const Operation& operation,
                               FailureReport own_report)
    : health_(health),
      failure_board_(health.failure_board()),
      rank_(rank),
      size_(size),
      operation_(operation),
      own_report_(std::move(own_report)) {
  // A subgroup on one side of a cut link has lost the coordinator only; the whole group has lost ranks.
  if (own_report_.reason == FailureReport::Reason::heartbeat_lost && own_report_.waiting_for.empty())
    replace_report_if_peers_failed();
  failure_board_->publish(rank_, own_report_.to_text());
  published_at_ = Clock::now();
}

FailureReports RootCauseQuery::read_reports() {
  const auto texts = failure_board_->read();
  FailureReports reports(static_cast<std::size_t>(size_));
  for (std::size_t rank = 0; rank < std::min(texts.size(), reports.size()); ++rank) {
    if (texts[rank]) reports[rank] = report_of_peer(*texts[rank], reports.size());
  }
  reports.at(static_cast<std::size_t>(rank_)) = own_report_;
  return reports;
}

RootCause RootCauseQuery::find() {
  FailureReports reports;
  bool is_unreachable = false;
  for (;;) {
    reports = read_reports();
    if (is_complete(reports, rank_, failure_board_->exited_ranks()))
      return find_root_cause(reports, rank_, operation_.job_ranks);
    is_unreachable = !failure_board_->is_reachable();
    const auto end = published_at_ + (is_unreachable ? query_timeout_if_unreachable : query_timeout);
    if (Clock::now() >= end) break;
    failure_board_->wait_for_change(end);
  }
  if (is_unreachable && replace_report_if_peers_failed())
    return find_root_cause(read_reports(), rank_, operation_.job_ranks);
  // The rank that passes reports on is the root cause if it fails. If it has published a report, that has the reason.
  const int owner = failure_board_->owner();
  const bool may_be_owner =
      owner >= 0 && owner != rank_ && !reports.at(static_cast<std::size_t>(owner)) && !own_report_.timed_out();
  if (may_be_owner && (is_unreachable || !failure_board_->answers(answer_timeout)))
    return owner_failure(is_unreachable);
  return find_root_cause(reports, rank_, operation_.job_ranks);
}

// Behind a cut link the ranks of a node fail one after another, and cannot tell each other why.
bool RootCauseQuery::replace_report_if_peers_failed() {
  try {
    health_.throw_if_peers_failed();
    return false;
  } catch (const TransferError& error) {
    own_report_ = make_report(error, operation_);
    return true;
  }
}

RootCause RootCauseQuery::owner_failure(bool is_lost) const {
  RootCause root_cause{.failed_ranks = {failure_board_->owner()}, .timed_out = false, .message = {}};
  root_cause.message = own_report_.description + operation_.job_ranks.describe_group() + ": " +
                       operation_.job_ranks.describe(root_cause.failed_ranks) + ", which runs the coordinator, " +
                       (is_lost ? "exited" : "has not answered for " + describe_duration(query_timeout));
  return root_cause;
}

}  // namespace tutti::comm
