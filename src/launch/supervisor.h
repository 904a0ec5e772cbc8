#pragma once
// Supervises the ranks of one node until all have exited: forwards their output, and ends all ranks when one fails.
#include <csignal>
#include <cstddef>
#include <deque>
#include <functional>
#include <optional>
#include <vector>

#include "core/file_descriptor.h"
#include "launch/output.h"
#include "launch/rank_process.h"
#include "launch/shutdown_policy.h"
#include "launch/signal_events.h"

namespace tutti {

class Supervisor {
 public:
  struct Result {
    /// Of the processes that failed, the first to exit. find_first_failure() tells which one failed first.
    RankProcess* first_failed = nullptr;
    /// All processes, in the order of their exits.
    std::vector<RankProcess*> exits{};
    /// The signal that ended the job before any rank failed.
    std::optional<int> interrupted_by;
    /// The launcher received a signal, before or after a rank failed.
    bool stop_requested = false;
  };

  struct Actions {
    /// A rank has exited.
    std::function<void(const RankProcess&)> on_exit = [](const RankProcess&) {};
    /// Ends a rank: SIGINT, SIGTERM or SIGKILL.
    std::function<void(const RankProcess&, int signal)> end = &RankProcess::signal_group;
  };

  Supervisor(std::deque<RankProcess>& ranks, SignalEvents& signals, std::vector<Sink*> sinks, ShutdownPolicy policy,
             Actions actions);

  Result run();

 private:
  using Clock = ShutdownPolicy::Clock;

  bool is_done() const;
  void wait_for_events();
  void forward_output();
  void handle_signals();
  void handle_ended_ranks();
  void end_ranks(std::optional<int> signal);
  void wake_ranks();

  std::deque<RankProcess>& ranks_;
  SignalEvents& signals_;
  std::vector<Sink*> sinks_;
  ShutdownPolicy policy_;
  Actions actions_;
  /// An epoll of the ranks' exits. Unlike poll, epoll reports events in order, which identifies the rank that failed
  /// first.
  FileDescriptor exits_;
  std::size_t ended_ = 0;
  bool is_ending_ = false;  // the launcher has sent a signal that ends ranks
  Result result_;
  /// The end of the wait for processes that ranks left behind and that still hold their output pipes.
  std::optional<Clock::time_point> leftovers_deadline_;
};

}  // namespace tutti
