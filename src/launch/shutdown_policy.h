#pragma once
// When a job that has to end gets which signal. Pure: events and times in, signals out. The launcher sends what this
// decides to every rank's process group.
#include <chrono>
#include <optional>

namespace tutti {

class ShutdownPolicy {
 public:
  using Clock = std::chrono::steady_clock;

  explicit ShutdownPolicy(std::chrono::milliseconds grace) : grace_(grace) {}

  /// A rank ended with an error. The others have the grace time to notice it and to throw their own errors.
  void on_rank_failed(Clock::time_point now);

  /// The launcher itself got SIGINT or SIGTERM. Returns what to send at once: the same signal, or SIGKILL for a Ctrl-C
  /// that follows an earlier interruption.
  std::optional<int> on_interrupt(int signal, Clock::time_point now);

  /// Returns what to send now because a grace time is over: SIGTERM first, SIGKILL after that.
  std::optional<int> on_time(Clock::time_point now);

  /// When on_time wants to be called next.
  std::optional<Clock::time_point> deadline() const { return deadline_; }

 private:
  enum class Stage { running, draining, ending, killed };

  void enter(Stage stage, Clock::time_point now);

  std::chrono::milliseconds grace_;
  Stage stage_ = Stage::running;
  bool interrupted_ = false;
  std::optional<Clock::time_point> deadline_;
};

}  // namespace tutti
