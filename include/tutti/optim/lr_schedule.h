#pragma once
// Learning rate schedules: how the rate changes with the number of optimizer steps.
#include <cstdint>
#include <functional>
#include <vector>

#include "tutti/optim/optimizer.h"

namespace tutti {

/// A factor on the optimizer's own rates, by position: 0 for the first step.
using LrSchedule = std::function<double(std::int64_t position)>;

/// Rises linearly from 0 over `warmup_steps`, then falls as half a cosine to 0 at `total_steps`
/// (Loshchilov and Hutter, "SGDR", ICLR 2017; the curve of Hugging Face's get_cosine_schedule_with_warmup).
/// Throws UsageError unless 0 <= warmup_steps <= total_steps and total_steps > 0.
LrSchedule cosine_with_warmup(std::int64_t warmup_steps, std::int64_t total_steps);

/// What a Scheduler's position counts.
enum class ScheduleUnit {
  optimizer_step,  ///< windows
  micro_batch,     ///< also the micro-batches of accumulate() that do not step
};

/// Applies a schedule to an optimizer. A small value; copies share the position. One thread.
class Scheduler {
 public:
  /// Sets the rate of position 0 at once. The rates that the schedule multiplies are those that the optimizer has now.
  Scheduler(Optimizer optimizer, LrSchedule schedule, ScheduleUnit unit = ScheduleUnit::optimizer_step);

  /// Advances. Inside accumulate() it acts at the window's end only; the unit says whether the others count.
  void step();

  /// Rates by parameter group, as last set.
  std::vector<double> last_rates() const;
  std::int64_t position() const { return state_->position; }

 private:
  struct State {
    std::int64_t position = 0;
    std::vector<double> base_rates;
  };
  void apply();

  Optimizer optimizer_;
  LrSchedule schedule_;
  ScheduleUnit unit_;
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

}  // namespace tutti
