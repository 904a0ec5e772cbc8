#pragma once
// A learning rate schedule as a curve: a factor on the optimizer's learning rates by position. No I/O. schedules.h has
// the usual curves.
#include <cstdint>
#include <functional>
#include <type_traits>
#include <utility>

namespace tutti {

/// A curve, made from any callable double(std::int64_t position), as PyTorch's LambdaLR. Position 0 is the first step.
class LrSchedule {
 public:
  /// A curve for the learning rate: `LrSchedule([](std::int64_t position) { return ...; })`.
  template <typename Curve>
  requires std::is_invocable_r_v<double, const Curve&, std::int64_t> LrSchedule(Curve curve)
      : factor_(std::move(curve)) {}
  /// A curve for the learning rate and a curve for the momentum (beta1 of the Adam family), as in one_cycle().
  LrSchedule(std::function<double(std::int64_t)> factor, std::function<double(std::int64_t)> momentum)
      : factor_(std::move(factor)), momentum_(std::move(momentum)) {}

  /// The factor at `position` on the learning rates that the optimizer had when it was prepared.
  double factor(std::int64_t position) const { return factor_(position); }
  /// Whether momentum() may be called.
  bool has_momentum() const { return static_cast<bool>(momentum_); }
  /// The momentum at `position`. It replaces the optimizer's momentum.
  double momentum(std::int64_t position) const { return momentum_(position); }

 private:
  std::function<double(std::int64_t)> factor_;
  std::function<double(std::int64_t)> momentum_;
};

}  // namespace tutti
