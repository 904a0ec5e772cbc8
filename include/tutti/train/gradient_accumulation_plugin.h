#pragma once
// How accumulate() forms windows; the names are Accelerate's.
#include "tutti/optim/schedule_rule.h"

namespace tutti {

/// Accelerate's class of this name. Every rank gives the same.
struct GradientAccumulationPlugin {
  /// Micro-batches of one rank in an optimizer step; at least 1.
  int num_steps = 1;
  /// What the schedules that prepare() takes count. Accelerate's adjust_scheduler is
  /// ScheduleRule::accelerate_micro_batch.
  ScheduleRule schedule_rule = ScheduleRule::optimizer_step;
  /// End a window with the last batch of the innermost running tutti::DataLoader.
  bool sync_with_dataloader = true;
  /// Synchronize in every backward pass, for less memory or for looking at gradients; the step stays at the window's
  /// end.
  bool sync_each_batch = false;
};

}  // namespace tutti
