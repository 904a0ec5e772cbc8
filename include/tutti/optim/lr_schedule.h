#pragma once
// A learning rate schedule as a curve: a factor on the optimizer's own rates by position. Pure. Ready ones are in
// schedules.h.
#include <cstdint>
#include <functional>
#include <type_traits>
#include <utility>

namespace tutti {

/// A curve. Any callable double(std::int64_t position) is one, as PyTorch's LambdaLR; position 0 is the first step.
class LrSchedule {
 public:
  /// Takes the curve as it is: `LrSchedule([](std::int64_t position) { return ...; })`.
  template <typename Curve>
  requires std::is_invocable_r_v<double, const Curve&, std::int64_t> LrSchedule(Curve curve)
      : factor_(std::move(curve)) {}
  /// A curve for the rate, and one for a momentum that goes with it (beta1 of the Adam family), as one_cycle() has it.
  LrSchedule(std::function<double(std::int64_t)> factor, std::function<double(std::int64_t)> momentum)
      : factor_(std::move(factor)), momentum_(std::move(momentum)) {}

  /// What the rates that the optimizer had when it was prepared are multiplied by.
  double factor(std::int64_t position) const { return factor_(position); }
  /// Whether momentum() may be called.
  bool has_momentum() const { return static_cast<bool>(momentum_); }
  /// The momentum at `position`, in the place of the optimizer's own.
  double momentum(std::int64_t position) const { return momentum_(position); }

 private:
  std::function<double(std::int64_t)> factor_;
  std::function<double(std::int64_t)> momentum_;
};

}  // namespace tutti
