#pragma once
// Moves an optimizer's learning rate along a schedule.
#include <cstdint>
#include <memory>
#include <vector>

#include "tutti/optim/lr_schedule.h"
#include "tutti/optim/optimizer.h"
#include "tutti/optim/schedule_rule.h"
#include "tutti/state/stateful.h"

namespace tutti {

/// A small value; copies share the position. Every rank steps it alike. One thread.
class Scheduler final : public Stateful {
 public:
  /// Sets the rate of position 0 at once. The rates that the schedule multiplies are those that the optimizer has now.
  /// Throws UsageError for a schedule with a momentum on an optimizer without one.
  Scheduler(Optimizer optimizer, LrSchedule schedule, const SchedulePace& pace = {});

  /// Advances as the pace says, and sets the rate where an optimizer step ends a window. Does nothing where that step
  /// was skipped (its gradients overflowed). Throws UsageError for a curve that gives no finite number.
  void step();

  /// Rates by parameter group, as last set.
  std::vector<double> last_rates() const;
  /// Where it stands on the curve; 0 at the beginning.
  std::int64_t position() const { return state_->position; }

  StateDict state_dict() const override;
  void load_state_dict(const StateDict& state) override;

 private:
  struct State {
    std::int64_t position = 0;
    std::int64_t applied = 0;  // the position whose rate is set: within a window `position` may be ahead
    std::vector<double> base_rates;
  };
  void enter(State next);

  Optimizer optimizer_;
  LrSchedule schedule_;
  SchedulePace pace_;
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

}  // namespace tutti
