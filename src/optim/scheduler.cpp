#include "tutti/optim/scheduler.h"

#include <cmath>
#include <string>
#include <utility>

#include "optim/momentum.h"
#include "optim/step_options.h"
#include "tutti/core/error.h"
#include "tutti/detail/sync/reducer.h"

namespace tutti {

Scheduler::Scheduler(Optimizer optimizer, LrSchedule schedule, const SchedulePace& pace)
    : optimizer_(std::move(optimizer)), schedule_(std::move(schedule)), pace_(pace) {
  require_learning_rate(optimizer_.inner(), "Scheduler");
  enter({.position = 0, .applied = 0, .base_rates = last_rates()});
}

void Scheduler::step() {
  optimizer_.reducer()->warn_before_last_scope("a schedule's step()",
                                               "advances the schedule. If the loop calls it for each batch, call it "
                                               "inside the scope, where it acts at the window's end");
  const bool at_window_end = optimizer_.reducer()->at_window_end();
  if (at_window_end && optimizer_.step_was_skipped()) return;
  const std::int64_t position = state_->position + advance(pace_, at_window_end);
  if (at_window_end) {
    enter({.position = position, .applied = position, .base_rates = state_->base_rates});
  } else {
    state_->position = position;
  }
}

std::vector<double> Scheduler::last_rates() const {
  return learning_rates_of(optimizer_.inner());
}

StateDict Scheduler::state_dict() const {
  StateDict state;
  state.set("position", state_->position);
  state.set("applied_position", state_->applied);
  state.set("base_rates", state_->base_rates);
  return state;
}

void Scheduler::load_state_dict(const StateDict& state) {
  State loaded{.position = state.get<std::int64_t>("position"),
               .applied = state.get<std::int64_t>("applied_position"),
               .base_rates = state.get<std::vector<double>>("base_rates")};
  // A group that was added later has no base rate here until the next step.
  const std::size_t groups = optimizer_.inner().param_groups().size();
  if (loaded.base_rates.size() != state_->base_rates.size() && loaded.base_rates.size() != groups) {
    throw CheckpointError("the saved schedule is for " + std::to_string(loaded.base_rates.size()) +
                          " parameter groups, the optimizer has " + std::to_string(groups));
  }
  for (const double rate : loaded.base_rates) {
    if (!std::isfinite(rate))
      throw CheckpointError("the saved schedule is damaged: it has a learning rate of " + std::to_string(rate));
  }
  if (loaded.applied < 0 || loaded.position < loaded.applied) {
    throw CheckpointError("the saved schedule is damaged: its position is " + std::to_string(loaded.position) +
                          ", with the rate of " + std::to_string(loaded.applied));
  }
  enter(std::move(loaded));
}

// All statements that can throw run before the state changes.
void Scheduler::enter(State next) {
  const double factor = schedule_.factor(next.applied);
  if (!std::isfinite(factor)) {
    throw UsageError("the learning rate schedule gives " + std::to_string(factor) + " at position " +
                     std::to_string(next.applied) + ": a factor must be a finite number");
  }
  if (schedule_.has_momentum()) set_momentum(optimizer_.inner(), schedule_.momentum(next.applied));
  auto& groups = optimizer_.inner().param_groups();
  // A group that was added later starts from its own rate.
  for (std::size_t i = next.base_rates.size(); i < groups.size(); ++i)
    next.base_rates.push_back(groups[i].options().get_lr());
  for (std::size_t i = 0; i < groups.size(); ++i) groups[i].options().set_lr(next.base_rates[i] * factor);
  *state_ = std::move(next);
}

}  // namespace tutti
