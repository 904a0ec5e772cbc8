#pragma once
// The learning rate schedule of a Trainer: over optimizer steps, or by evaluation results.
#include <optional>
#include <utility>

#include "tutti/optim/plateau.h"
#include "tutti/optim/scheduler.h"

namespace tutti {

/// Made from the schedule that prepare() returned, or from std::nullopt for a constant rate. Copies share the schedule.
/// Not thread safe.
class TrainerSchedule {
 public:
  /// The optimizer's rate stays constant.
  TrainerSchedule(std::nullopt_t /*none*/) {}
  /// A schedule over optimizer steps.
  TrainerSchedule(Scheduler scheduler) : by_step_(std::move(scheduler)) {}
  /// A schedule over optimizer steps, or a constant rate for std::nullopt.
  TrainerSchedule(std::optional<Scheduler> scheduler) : by_step_(std::move(scheduler)) {}
  /// Follows TrainerOptions::plateau_metric.
  TrainerSchedule(ReduceLROnPlateau plateau) : by_metric_(std::move(plateau)) {}

  /// True if evaluation results change the rate.
  bool follows_a_metric() const { return by_metric_.has_value(); }
  /// Called after each micro-batch, in its accumulate() scope, and after the optimizer step if there is one.
  void step() {
    if (by_step_) by_step_->step();
  }
  /// Called after each evaluation, on every rank.
  void step(double metric) {
    if (by_metric_) by_metric_->step(metric, {});
  }

 private:
  std::optional<Scheduler> by_step_;
  std::optional<ReduceLROnPlateau> by_metric_;
};

}  // namespace tutti
