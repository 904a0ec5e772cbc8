#include "launch/shutdown_policy.h"

#include <csignal>

namespace tutti {

void ShutdownPolicy::on_rank_failed(Clock::time_point now) {
  if (stage_ == Stage::running) enter(Stage::draining, now);
}

std::optional<int> ShutdownPolicy::on_interrupt(int signal, Clock::time_point now) {
  if (stage_ == Stage::killed) return std::nullopt;
  if (interrupted_) {
    // Schedulers repeat SIGTERM, which has no further meaning. A second Ctrl-C asks to end at once.
    if (signal != SIGINT) return std::nullopt;
    enter(Stage::killed, now);
    return SIGKILL;
  }
  interrupted_ = true;
  if (stage_ != Stage::ending) enter(Stage::ending, now);  // does not extend a grace time that has begun
  return signal == SIGINT ? SIGINT : SIGTERM;
}

std::optional<int> ShutdownPolicy::on_time(Clock::time_point now) {
  if (!deadline_ || now < *deadline_) return std::nullopt;
  if (stage_ == Stage::draining) {
    enter(Stage::ending, now);
    return SIGTERM;
  }
  enter(Stage::killed, now);
  return SIGKILL;
}

void ShutdownPolicy::enter(Stage stage, Clock::time_point now) {
  stage_ = stage;
  deadline_ = stage == Stage::killed ? std::nullopt : std::optional(now + time_of_stage());
}

std::chrono::milliseconds ShutdownPolicy::time_of_stage() const {
  if (stage_ == Stage::ending && ends_ == Ends::launchers) return after_interruption_ + margin_of_launchers;
  return interrupted_ ? after_interruption_ : after_failure_;
}

}  // namespace tutti
