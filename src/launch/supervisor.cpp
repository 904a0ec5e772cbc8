#include "launch/supervisor.h"

#include <poll.h>
#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

namespace tutti {
namespace {

/// For processes that a rank leaves behind, such as a `| tee` that writes the last lines.
constexpr std::chrono::seconds leftovers_grace{1};

int milliseconds_until(std::optional<ShutdownPolicy::Clock::time_point> deadline) {
  if (!deadline) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(*deadline - ShutdownPolicy::Clock::now()).count();
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, 60'000));
}

void check_result(int result, const char* what) {
  if (result < 0) throw std::system_error(errno, std::generic_category(), what);
}

}  // namespace

Supervisor::Supervisor(std::deque<RankProcess>& ranks, SignalEvents& signals, std::vector<Sink*> sinks,
                       ShutdownPolicy policy, Actions actions)
    : ranks_(ranks),
      signals_(signals),
      sinks_(std::move(sinks)),
      policy_(policy),
      actions_(std::move(actions)),
      exits_(::epoll_create1(EPOLL_CLOEXEC)) {
  for (auto& rank : ranks_) {
    epoll_event once{EPOLLIN | EPOLLONESHOT, {&rank}};
    check_result(::epoll_ctl(exits_.get(), EPOLL_CTL_ADD, rank.exit_fd(), &once), "cannot watch a rank");
  }
}

Supervisor::Result Supervisor::run() {
  while (!is_done()) {
    wait_for_events();
    forward_output();
    handle_signals();
    handle_ended_ranks();
    end_ranks(policy_.on_time(Clock::now()));
  }
  end_ranks(SIGKILL);
  for (auto& rank : ranks_) rank.output().finish();
  return result_;
}

bool Supervisor::is_done() const {
  if (!leftovers_deadline_) return false;
  const bool quiet = std::none_of(ranks_.begin(), ranks_.end(), [](auto& rank) { return rank.output().is_open(); });
  return quiet || Clock::now() >= *leftovers_deadline_;
}

void Supervisor::wait_for_events() {
  std::vector<pollfd> fds{{signals_.fd(), POLLIN, 0}, {exits_.get(), POLLIN, 0}};
  for (auto* sink : sinks_) {
    if (sink->has_pending()) fds.push_back({sink->fd(), POLLOUT, 0});
  }
  for (auto& rank : ranks_) {
    for (auto& stream : rank.output().streams()) {
      if (stream.pipe.is_open() && !stream.sink->is_full()) fds.push_back({stream.pipe.get(), POLLIN, 0});
    }
  }
  const auto deadline = leftovers_deadline_ ? leftovers_deadline_ : policy_.deadline();
  const int ready = ::poll(fds.data(), fds.size(), milliseconds_until(deadline));
  if (ready < 0 && errno != EINTR) check_result(ready, "poll");
}

void Supervisor::forward_output() {
  for (auto& rank : ranks_) {
    for (auto& stream : rank.output().streams()) {
      if (!stream.sink->is_full()) rank.output().read_piece(stream);
    }
  }
  for (auto* sink : sinks_) {
    pollfd writable{sink->fd(), POLLOUT, 0};
    while (sink->has_pending() && ::poll(&writable, 1, 0) == 1) sink->write_ready();
  }
}

void Supervisor::handle_signals() {
  for (const int signal : signals_.take()) {
    result_.stop_requested = true;
    if (result_.first_failed == nullptr && !result_.interrupted_by) result_.interrupted_by = signal;
    end_ranks(policy_.on_interrupt(signal, Clock::now()));
  }
}

void Supervisor::handle_ended_ranks() {
  epoll_event event{};
  while (::epoll_wait(exits_.get(), &event, 1, 0) == 1) {
    auto* rank = static_cast<RankProcess*>(event.data.ptr);
    const auto& status = rank->poll_exit();
    ++ended_;
    if (!status) continue;
    actions_.on_exit(*rank);
    result_.exits.push_back(rank);
    if (is_ending_) rank->mark_ended_by_launcher();
    if (!status->failed()) continue;
    if (result_.first_failed == nullptr) {
      result_.first_failed = rank;
      for (auto& one : ranks_) one.note_stop();
      wake_ranks();
    }
    policy_.on_rank_failed(Clock::now());
  }
  if (ended_ == ranks_.size() && !leftovers_deadline_) leftovers_deadline_ = Clock::now() + leftovers_grace;
}

void Supervisor::end_ranks(std::optional<int> signal) {
  if (!signal) return;
  is_ending_ = true;
  for (const auto& rank : ranks_) actions_.end(rank, *signal);
  wake_ranks();
}

// A stopped rank does not detect the failure of another rank or handle a signal, so without SIGCONT it would need
// SIGKILL.
void Supervisor::wake_ranks() {
  for (const auto& rank : ranks_) rank.signal_group(SIGCONT);
}

}  // namespace tutti
