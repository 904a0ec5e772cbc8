#pragma once
// Measures the time that a rank spends in each stage.
#include <array>
#include <chrono>
#include <functional>
#include <string_view>
#include <type_traits>
#include <utility>

namespace tutti {

/// The stages into which a rank's time is divided.
enum class Stage {
  data,       ///< reading the next batch, or waiting for it
  forward,    ///< forward pass and loss
  backward,   ///< backward pass, without waiting
  waiting,    ///< waiting for other ranks
  optimizer,  ///< clipping, step, schedule
  other,      ///< the rest: logging, callbacks, evaluation, checkpoints
};
/// Names of the stages in metrics and reports, in the order of Stage.
inline constexpr std::array<std::string_view, 6> stage_names{"data",    "forward",   "backward",
                                                             "waiting", "optimizer", "other"};
/// Seconds by stage.
using StageSeconds = std::array<double, stage_names.size()>;

/// Assigns all time to exactly one stage: time outside measure() is Stage::other. Not thread safe.
class StageClock {
 public:
  using Clock = std::chrono::steady_clock;

  /// `waited` returns the seconds for which this rank has waited for other ranks so far. This time is subtracted from
  /// the stage in which it occurred and counted as Stage::waiting.
  explicit StageClock(std::function<double()> waited, std::function<Clock::time_point()> now = Clock::now)
      : waited_(std::move(waited)), now_(std::move(now)), lap_(now_()), waited_before_(waited_()) {}

  template <typename Work>
  auto measure(Stage stage, Work&& work) -> std::invoke_result_t<Work&> {
    lap(current_);
    const Stage outer = std::exchange(current_, stage);
    struct Leave {
      StageClock& clock;
      Stage outer;
      ~Leave() {
        clock.lap(clock.current_);
        clock.current_ = outer;
      }
    } const leave{*this, outer};
    return work();
  }

  /// The seconds since the last call, by stage.
  StageSeconds take() {
    lap(current_);
    return std::exchange(seconds_, {});
  }

 private:
  void lap(Stage stage) {
    const auto now = now_();
    const double waited = waited_();
    const double waiting = waited - std::exchange(waited_before_, waited);
    seconds_[static_cast<std::size_t>(Stage::waiting)] += waiting;
    seconds_[static_cast<std::size_t>(stage)] +=
        std::chrono::duration<double>(now - std::exchange(lap_, now)).count() - waiting;
  }

  std::function<double()> waited_;
  std::function<Clock::time_point()> now_;
  Clock::time_point lap_;
  double waited_before_;
  Stage current_ = Stage::other;
  StageSeconds seconds_{};
};

}  // namespace tutti
