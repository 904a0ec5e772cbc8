#include "comm/health/root_cause.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <set>
#include <sstream>
#include <thread>

#include "comm/backend/describe.h"

namespace tutti::comm {
namespace {

constexpr auto query_timeout = std::chrono::milliseconds(700);                // an exited rank is named within a second
constexpr auto query_timeout_without_store = std::chrono::milliseconds(100);  // from the beginning
constexpr auto reachability_poll_interval = std::chrono::milliseconds(20);
// The interval grows, because many ranks that fail at once poll one store.
constexpr auto first_poll_interval = std::chrono::milliseconds(10);
constexpr auto max_poll_interval = std::chrono::milliseconds(40);

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
      if (report->timed_out() && entered_late(next)) {
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
  return "the launcher's store has not answered for " + describe_duration(own_report.timeout) +
         " (network partition, or its host is down)";
}

std::string describe_failure(const std::vector<int>& failed_ranks, const FailureReport& waiting_report,
                             const FailureReports& reports, int rank) {
  const std::string subject = describe_ranks(failed_ranks);
  if (failed_ranks == std::vector<int>{rank}) {
    return "the other ranks timed out waiting for this rank (" + std::to_string(rank) + ") after " +
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
  const bool exited = waiting_report.reason == FailureReport::Reason::process_exited;
  return subject + (exited ? " exited" : " disconnected (connection closed)");
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
  report.reason = static_cast<Reason>(reason_number);
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

RootCause find_root_cause(const FailureReports& reports, int rank) {
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
  root_cause.message =
      own_report.description + ": " +
      (root_cause.failed_ranks.empty() ? describe_without_failed_rank(own_report)
                                       : describe_failure(root_cause.failed_ranks, waiting_report, reports, rank));
  if (!waiting.empty()) {
    root_cause.message += "; " + describe_ranks(waiting) + (waiting.size() == 1 ? " was" : " were") + " waiting";
  }
  return root_cause;
}

struct RootCauseQuery::Shared {
  std::mutex mutex;
  std::condition_variable changed;
  bool published = false;
  bool unreachable = false;
  bool stopping = false;
  FailureReports reports;
  std::vector<int> exited_ranks;
  bool has_read = false;
  bool thread_done = false;  // the thread is about to return

  void poll(FailureBoard& failure_board, int rank, const std::string& text) {
    try {
      failure_board.publish(rank, text);
      std::unique_lock lock(mutex);
      published = true;
      changed.notify_all();
      for (auto interval = first_poll_interval; !stopping; interval = std::min(2 * interval, max_poll_interval)) {
        lock.unlock();
        auto exited_before = failure_board.exited_ranks();
        FailureReports found;
        for (const auto& post : failure_board.read()) {
          found.push_back(post ? std::optional(FailureReport::from_text(*post)) : std::nullopt);
        }
        lock.lock();
        reports = std::move(found);
        exited_ranks = std::move(exited_before);
        has_read = true;
        changed.notify_all();
        changed.wait_for(lock, interval, [&] { return stopping; });
      }
    } catch (const std::exception&) {
      const std::lock_guard lock(mutex);
      unreachable = true;
      changed.notify_all();
    }
  }

  void finish() {
    const std::lock_guard lock(mutex);
    thread_done = true;
    changed.notify_all();
  }
};

// A stopped process may serve the failure board with its sockets open; a request to it then blocks for ever. So a
// thread sends the requests, and waiting for that thread has a timeout.
RootCauseQuery::RootCauseQuery(std::shared_ptr<FailureBoard> failure_board, int rank, int size,
                               FailureReport own_report)
    : shared_(std::make_shared<Shared>()),
      failure_board_(failure_board),
      rank_(rank),
      size_(size),
      owner_(failure_board->owner()),
      own_report_(std::move(own_report)) {
  thread_ = std::thread([shared = shared_, failure_board, rank, text = own_report_.to_text()] {
    shared->poll(*failure_board, rank, text);
    shared->finish();
  });
}

RootCauseQuery::~RootCauseQuery() {
  std::unique_lock lock(shared_->mutex);
  shared_->stopping = true;
  shared_->changed.notify_all();
  lock.unlock();
  const bool done = wait([&] { return shared_->thread_done; });
  if (done) {
    thread_.join();
  } else {
    thread_.detach();
  }
}

template <typename Done>
bool RootCauseQuery::wait(const Done& done) {
  const auto until = Clock::now() + query_timeout;
  bool reachable = own_report_.reason != FailureReport::Reason::heartbeat_lost;
  std::unique_lock lock(shared_->mutex);
  for (;;) {
    const auto end = reachable ? until : std::min(until, start_ + query_timeout_without_store);
    const auto now = Clock::now();
    if (shared_->changed.wait_until(lock, std::min(end, now + reachability_poll_interval), done)) return true;
    if (Clock::now() >= end) return false;
    if (!reachable) continue;
    lock.unlock();
    reachable = failure_board_->is_reachable();
    lock.lock();
  }
}

void RootCauseQuery::wait_until_published() {
  (void)wait([&] { return shared_->published || shared_->unreachable; });
}

RootCause RootCauseQuery::root_cause() {
  (void)wait([&] {
    return shared_->unreachable || (shared_->has_read && is_complete(shared_->reports, rank_, shared_->exited_ranks));
  });
  std::unique_lock lock(shared_->mutex);
  FailureReports reports(static_cast<std::size_t>(size_));
  if (shared_->has_read) reports = shared_->reports;
  const bool unreachable = shared_->unreachable;
  const bool no_answer = unreachable || !shared_->has_read;
  lock.unlock();
  reports.at(static_cast<std::size_t>(rank_)) = own_report_;
  // If the server of the store published a report, its exit has the reason in that report.
  const bool owner_has_no_report = owner_ >= 0 && !report_of(reports, owner_);
  if (!no_answer || !owner_has_no_report || own_report_.timed_out()) return find_root_cause(reports, rank_);

  RootCause root_cause{.failed_ranks = {owner_}, .timed_out = false, .message = {}};
  const std::string subject =
      own_report_.description + ": " + describe_ranks(root_cause.failed_ranks) + ", which serves the store, ";
  root_cause.message =
      subject + (unreachable ? "disconnected (neither it nor the store answers)"
                             : "has not answered for " + describe_duration(query_timeout) + " (nor has its store)");
  return root_cause;
}

}  // namespace tutti::comm
