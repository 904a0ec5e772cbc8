#include "comm/health/root_cause.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

#include "comm/backend/describe.h"

namespace tutti::comm {
namespace {

constexpr auto query_timeout = std::chrono::milliseconds(700);                // an exited rank is named within a second
constexpr auto query_timeout_without_store = std::chrono::milliseconds(100);  // from the beginning
constexpr auto reachability_poll_interval = std::chrono::milliseconds(20);
// The interval grows, because many ranks that fail at once poll one store.
constexpr auto first_poll_interval = std::chrono::milliseconds(10);
constexpr auto max_poll_interval = std::chrono::milliseconds(40);

// Ranks that the group does not have are left out.
FailureReport report_of_peer(const std::string& text, std::size_t size) {
  auto report = FailureReport::from_text(text);
  std::erase_if(report.waiting_for, [&](int rank) { return rank < 0 || std::cmp_greater_equal(rank, size); });
  return report;
}

}  // namespace

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
        const auto posts = failure_board.read();
        for (const auto& post : posts) {
          found.push_back(post ? std::optional(report_of_peer(*post, posts.size())) : std::nullopt);
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
  const bool owner_has_no_report = owner_ >= 0 && !reports.at(static_cast<std::size_t>(owner_));
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
