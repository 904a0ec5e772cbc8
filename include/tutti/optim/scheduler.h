#pragma once
// Sets an optimizer's learning rate from a schedule.
#include <cstdint>
#include <memory>
#include <vector>

#include "tutti/optim/lr_schedule.h"
#include "tutti/optim/optimizer.h"
#include "tutti/state/stateful.h"

namespace tutti {

/// A handle: copies share the position. Every rank must call step() in the same order. Not thread safe.
class Scheduler final : public Stateful {
 public:
  /// Sets the learning rate of position 0. The schedule multiplies the learning rates that the optimizer has at this
  /// call; of a parameter group that is added later, the rate at the next step(). Throws UsageError for an optimizer
  /// without a learning rate, and for a schedule with a momentum on an optimizer without one.
  Scheduler(Optimizer optimizer, LrSchedule schedule, const SchedulePace& pace = {});

  /// Advances by the pace, and sets the learning rate if an optimizer step ends a window. Does nothing if that step was
  /// skipped because its gradients overflowed. Throws UsageError if the curve returns NaN or infinity.
  void step();

  /// Learning rates by parameter group, as last set.
  std::vector<double> last_rates() const;
  /// The position on the curve, from 0.
  std::int64_t position() const { return state_->position; }

  StateDict state_dict() const override;
  void load_state_dict(const StateDict& state) override;

 private:
  struct State {
    std::int64_t position = 0;
    std::int64_t applied = 0;  // the position whose rate is set; `position` may be ahead within a window
    std::vector<double> base_rates;
  };
  void enter(State next);

  Optimizer optimizer_;
  LrSchedule schedule_;
  SchedulePace pace_;
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

}  // namespace tutti
