#pragma once
// Decides which signal ends a job, and when. No I/O: events and times in, signals out. The launcher sends the signals
// to the process group of every rank, or ends the launchers on other hosts.
#include <chrono>
#include <optional>

namespace tutti {

class ShutdownPolicy {
 public:
  using Clock = std::chrono::steady_clock;

  /// After a failure the other ranks only have errors to report. After an interruption they may have a step to end and
  /// a checkpoint to save.
  static constexpr std::chrono::seconds grace_after_failure{5};
  static constexpr std::chrono::seconds grace_after_interruption{30};

  /// A launcher on another host gives its ranks the grace time after an interruption, then kills them. It must not be
  /// cut off before.
  static constexpr std::chrono::seconds margin_of_launchers{5};

  enum class Ends { ranks, launchers };

  /// `grace`: replaces both grace times above.
  explicit ShutdownPolicy(std::optional<std::chrono::milliseconds> grace, Ends ends = Ends::ranks)
      : after_failure_(grace.value_or(grace_after_failure)),
        after_interruption_(grace.value_or(grace_after_interruption)),
        ends_(ends) {}

  /// A rank failed. The other ranks get the grace time to detect it and to throw their own errors.
  void on_rank_failed(Clock::time_point now);

  /// The launcher received a signal. Returns the signal to send at once: SIGINT for SIGINT, SIGTERM for others, or
  /// SIGKILL for a Ctrl-C after an earlier interruption.
  std::optional<int> on_interrupt(int signal, Clock::time_point now);

  /// Returns the signal to send at the end of a grace time: first SIGTERM, then SIGKILL.
  std::optional<int> on_time(Clock::time_point now);

  /// The time of the next call of on_time().
  std::optional<Clock::time_point> deadline() const { return deadline_; }

 private:
  enum class Stage { running, draining, ending, killed };

  void enter(Stage stage, Clock::time_point now);
  std::chrono::milliseconds time_of_stage() const;

  std::chrono::milliseconds after_failure_;
  std::chrono::milliseconds after_interruption_;
  Ends ends_;
  Stage stage_ = Stage::running;
  bool interrupted_ = false;
  std::optional<Clock::time_point> deadline_;
};

}  // namespace tutti
