#pragma once
// Options for the windows of accumulate(). The names are Accelerate's.
#include "tutti/optim/lr_schedule.h"

namespace tutti {

/// Accelerate's class of the same name. Every rank must pass the same.
struct GradientAccumulationPlugin {
  /// Micro-batches of one rank in an optimizer step; at least 1.
  int num_steps = 1;
  /// The unit in which prepared schedules count. Accelerate's adjust_scheduler is ScheduleRule::accelerate_micro_batch.
  ScheduleRule schedule_rule = ScheduleRule::optimizer_step;
  /// End a window with the last batch of the innermost running tutti::DataLoader.
  bool sync_with_dataloader = true;
  /// Synchronize in every backward pass, to save memory or to inspect gradients. The step stays at the window's end.
  bool sync_each_batch = false;
};

}  // namespace tutti
