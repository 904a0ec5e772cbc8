#pragma once
// Watches the ranks of one node until all have ended: passes their output on, and ends them all when one fails.
#include <chrono>
#include <cstddef>
#include <deque>
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
    RankProcess* first_failed = nullptr;
    /// Ranks that had ended with exit code 0 when that one failed, in the order in which they did.
    std::vector<const RankProcess*> ended_before{};
    /// The signal that ended the job before any rank failed.
    std::optional<int> interrupted_by;
    /// The launcher was told to stop, before or after a rank failed.
    bool stop_requested = false;
  };

  Supervisor(std::deque<RankProcess>& ranks, SignalEvents& signals, std::vector<Sink*> sinks,
             std::chrono::milliseconds grace);

  Result run();

 private:
  using Clock = ShutdownPolicy::Clock;

  bool is_done() const;
  void wait_for_events();
  void forward_output();
  void handle_signals();
  void handle_ended_ranks();
  void signal_ranks(std::optional<int> signal);
  void wake_ranks();

  std::deque<RankProcess>& ranks_;
  SignalEvents& signals_;
  std::vector<Sink*> sinks_;
  ShutdownPolicy policy_;
  /// Ends of ranks, as an epoll: unlike poll it tells them in the order in which they happened, so that the rank that
  /// failed first is not mistaken for one that failed because of it.
  FileDescriptor exits_;
  std::size_t ended_ = 0;
  Result result_;
  /// When processes that ranks left behind, and that still hold their output, are waited for no longer.
  std::optional<Clock::time_point> leftovers_deadline_;
};

}  // namespace tutti
