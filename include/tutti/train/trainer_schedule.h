#pragma once
// What moves a Trainer's learning rate: a schedule over optimizer steps, or one that follows evaluation results.
#include <optional>
#include <utility>

#include "tutti/optim/plateau.h"
#include "tutti/optim/scheduler.h"

namespace tutti {

/// Made from what prepare() returned for the schedule, or std::nullopt for a rate that stays. A value; copies share the
/// schedule. One thread.
class TrainerSchedule {
 public:
  /// The rate stays as the optimizer has it.
  TrainerSchedule(std::nullopt_t /*none*/) {}
  /// A schedule over optimizer steps.
  TrainerSchedule(Scheduler scheduler) : by_step_(std::move(scheduler)) {}
  /// Either of the two.
  TrainerSchedule(std::optional<Scheduler> scheduler) : by_step_(std::move(scheduler)) {}
  /// Follows TrainerOptions::plateau_metric.
  TrainerSchedule(ReduceLROnPlateau plateau) : by_metric_(std::move(plateau)) {}

  /// Whether it moves with evaluations.
  bool follows_a_metric() const { return by_metric_.has_value(); }
  /// After each optimizer step.
  void step() {
    if (by_step_) by_step_->step();
  }
  /// After each evaluation, on every rank.
  void step(double metric) {
    if (by_metric_) by_metric_->step(metric, {});
  }

 private:
  std::optional<Scheduler> by_step_;
  std::optional<ReduceLROnPlateau> by_metric_;
};

}  // namespace tutti
